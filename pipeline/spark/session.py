"""The Spark session of a command: local unless it is told otherwise, quiet, on loopback, with the connectors that it needs.

A command of ``understudy`` starts Spark in this process and in a Java process beside it. Under ``spark-submit`` that process is
there already: master, memory and addresses are then those that spark-submit was given, and this module adds the rest. Where this
process has a session, as a notebook has one, a command uses that one as it is (`session`).

A small feed is set up for by `small`: what Spark compiles for a plan it runs once then.

Shuffle partitions: Spark merges small ones by itself while it runs (adaptive execution), and never splits large ones of an
aggregation. So the number is chosen for large feeds, and small feeds do not pay for it. docs/pipeline.md, Sizing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from understudy.pipeline.spark.errors import SessionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from understudy.pipeline.spark.connector_jars import ConnectorJars

LOCAL: Final = "local[*]"
MEMORY: Final = "4g"
SHUFFLE_PARTITIONS: Final = 64
JAVA_AT_LEAST: Final = 17
LOOPBACK: Final = "127.0.0.1"
UNCOMPILED: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
}
"""For small feeds: compiling plans, planning anew between stages, and describing plans for a page would take most of the time."""
QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""So would the optimising compiler of Java. Without it Java reserves 48 MB for compiled code, which a minute of plans fills."""
THROUGHPUT: Final = "-XX:+UseParallelGC"
"""Large feeds: Java's default collector works beside the tasks, and takes 7 % of CPU and a third of memory more."""
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_USERS_OPTIONS: Final = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
"""Where Java takes options from by itself. It does not start if two of its collectors are asked for."""
_ALL_STARTS: Final = (
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -Xlog:disable -Xlog:all=warning:stderr"
)
"""Java takes the classes of the jars that are installed as they are: verifying them takes a tenth of a small audit. And its
warnings go to stderr: stdout is the command's answer."""
_FIRST_JARS: Final = (
    *("scala-library-", "spark-catalyst_", "spark-sql_", "spark-core_", "spark-sql-api_", "spark-common-utils_"),
    *("spark-unsafe_", "hadoop-client-api-", "hadoop-client-runtime-", "py4j-"),
)
"""Java looks for a class in one jar after the other, and Spark has more than two hundred: most classes are in these."""
_PROGRESS: Final = "spark.ui.showConsoleProgress"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_OWN: Final = "spark.understudy.session"
"""Marks a session that a command has opened."""
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


@attrs.frozen(kw_only=True)
class SessionSettings:
    """How Spark runs.

    Attributes:
        name: of the application.
        master: ``local[N]``, ``local[*]`` or ``spark://host:port``; not used under spark-submit.
        memory: of the driver, and of each executor: a number with k, m, g or t. In local mode the driver does all the work.
        shuffle_partitions: at most so many tasks behind an exchange of rows.
        work: for what does not fit into memory; None: where Spark puts it by itself (``SPARK_LOCAL_DIRS``, or TMPDIR).
        jars: connectors.
        java: options of the driver's Java process.
        more: further settings of Spark, by key.
    """

    name: str
    master: str = LOCAL
    memory: str = MEMORY
    shuffle_partitions: int = SHUFFLE_PARTITIONS
    work: Path | None = None
    jars: Sequence[ConnectorJars] = ()
    java: str = THROUGHPUT
    more: Mapping[str, str] = attrs.field(factory=dict)


def open_session(settings: SessionSettings) -> SparkSession:
    """A session with these settings; the caller stops it.

    Raises:
        SessionError: PySpark is not installed, there is no Java or one that is too old, or Spark does not start.
        JarsError: a connector cannot be had.
    """
    check_memory(settings.memory)
    require_pyspark()
    submitted = is_submitted()
    if not submitted:
        _check_java()
    from pyspark.errors import PySparkException  # noqa: PLC0415  # an extra: see require_pyspark
    from pyspark.sql import SparkSession  # noqa: PLC0415  # as above

    _spare_processes()
    builder = SparkSession.builder.appName(settings.name)
    for key, value in _configuration(settings, submitted=submitted).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise SessionError(f"Spark does not start on {settings.master}: {error}") from error
    if submitted:
        try:
            _check_connectors(spark, settings.jars)
        except BaseException:
            spark.stop()
            raise
    return spark


def _spare_processes() -> None:
    """Tell Spark's scripts what they would start Python for, and start Java quickly for what it says to the next Java."""
    import pyspark  # noqa: PLC0415  # an extra: see require_pyspark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", beside_users(QUICK_START))


@contextmanager
def session(settings: SessionSettings) -> Iterator[SparkSession]:
    """A session for the time of a ``with``. A process has one: that one as it is, and it stays; else a new one, which is stopped.

    Raises:
        SessionError, JarsError: as `open_session`; the session that is there lacks a connector.
    """
    require_pyspark()
    from pyspark.sql import SparkSession  # noqa: PLC0415  # an extra: see require_pyspark

    check_memory(settings.memory)
    there = SparkSession.getActiveSession()
    if there is not None:
        _check_connectors(there, settings.jars)
        yield there
        return
    spark = open_session(settings)
    try:
        yield spark
    finally:
        spark.stop()


def _check_connectors(spark: SparkSession, jars: Sequence[ConnectorJars]) -> None:
    """Of a driver that runs already: it takes no jars any more. Raises: SessionError, JarsError."""
    from py4j.java_gateway import JavaClass  # noqa: PLC0415  # an extra: see require_pyspark

    missing = [each for each in jars if not isinstance(getattr(spark._jvm, each.sign), JavaClass)]  # noqa: SLF001  # no other way
    if missing:
        files = ",".join(str(file) for each in jars for file in each.find())
        names = " and ".join(each.name for each in missing)
        raise SessionError(f"Spark's driver lacks the connector for {names}: give spark-submit --jars {files}")


def small(settings: SessionSettings) -> SessionSettings:
    """``settings`` for a feed of some ten thousand events: its plans are not compiled."""
    return attrs.evolve(settings, java=QUICK_START, more={**UNCOMPILED, **settings.more})


def watched(settings: SessionSettings) -> SessionSettings:
    """``settings`` for a command that may take minutes: on a terminal Spark draws how many tasks of its stages are done."""
    return attrs.evolve(settings, more={_PROGRESS: str(sys.stderr.isatty()).lower(), **settings.more})


def shrink(spark: SparkSession, shuffle_partitions: int) -> None:
    """Set a session up as `small` does, when it runs already: of a topic nothing is known before. Java stays as it is.

    A session that was there before the command stays as it is, too.
    """
    if spark.conf.get(_OWN, ""):
        for key, value in {**UNCOMPILED, "spark.sql.shuffle.partitions": str(shuffle_partitions)}.items():
            spark.conf.set(key, value)


def is_small_session(spark: SparkSession) -> bool:
    """True if a session is set up as `small` says."""
    return spark.conf.get("spark.sql.codegen.wholeStage") == "false"


def is_submitted() -> bool:
    """True if spark-submit has started this process."""
    return _SUBMITTED in os.environ


def require_pyspark() -> None:
    """Raises: SessionError: PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise SessionError("PySpark is missing: pip install 'understudy[pipeline]'")


def check_memory(text: str) -> None:
    """Raises: SessionError: ``text`` is no size as Spark takes it."""
    if not _MEMORY.fullmatch(text):
        raise SessionError(f"--memory {text}: a number with k, m, g or t is needed, such as 4g")


def _configuration(settings: SessionSettings, *, submitted: bool) -> dict[str, str]:
    chosen = {
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        # By default PySpark looks up the caller of each expression, with several calls of Java: an audit makes thousands of them.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Rows are narrow and many: a larger piece of a file a task costs little memory, and fewer tasks start.
        "spark.sql.files.maxPartitionBytes": str(64 << 20),
        # Lists of a few elements a key. By default Spark sorts all rows of a task that has more than 128 keys.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": str(1 << 16),
        # Files of a feed are given by their names: tasks that list them cost more than they spare, up to thousands.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1024",
        "spark.sql.parquet.compression.codec": "zstd",
        _PROGRESS: "false",
        _OWN: settings.name,
        **settings.more,
    }
    if settings.jars:
        chosen["spark.jars"] = ",".join(str(jar) for each in settings.jars for jar in each.find())
    if not submitted:
        chosen |= {
            "spark.master": settings.master,
            "spark.driver.memory": settings.memory,
            "spark.executor.memory": settings.memory,
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": (
                f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} {_ALL_STARTS} {beside_users(settings.java)}"
            ),
            "spark.driver.extraClassPath": os.pathsep.join(_first_jars()),
        }
        if settings.work is not None:
            chosen["spark.local.dir"] = str(settings.work)
    return chosen


def beside_users(java: str) -> str:
    """Options of ours, without a collector if the user has chosen one."""
    chosen = any(_COLLECTOR.search(os.environ.get(name, "")) for name in _USERS_OPTIONS)
    return " ".join(_COLLECTOR.sub("", java).split()) if chosen else java


def _first_jars() -> list[str]:
    """Of Spark's own jars those in which most classes are."""
    jars = sorted(Path(os.environ["SPARK_HOME"], "jars").glob("*.jar"))
    found = [jar for prefix in _FIRST_JARS for jar in jars if jar.name.startswith(prefix)]
    return [str(jar) for jar in dict.fromkeys(found)]


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, and {java} is not there" if home else "java is not on PATH"
        raise SessionError(f"Spark needs Java {JAVA_AT_LEAST} or later; {where} (Debian: openjdk-17-jre-headless)")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    found = _VERSION.search(said.stderr + said.stdout)
    if found is None:
        raise SessionError(f"{java} -version does not say a version: {(said.stderr + said.stdout).strip()[:200]!r}")
    version = int(found[2] or 0) if found[1] == "1" else int(found[1])  # "1.8.0" is Java 8
    if version < JAVA_AT_LEAST:
        raise SessionError(f"Spark needs Java {JAVA_AT_LEAST} or later, and {java} is Java {version}")
