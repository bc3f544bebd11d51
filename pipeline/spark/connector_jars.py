"""Connectors of Spark that are no part of PySpark: fetched by Maven when they are needed, pinned by checksum, kept in a cache.

Spark's own way (``spark.jars.packages``) was refused: it checks no checksum that we have pinned, and asks again at each start.
The cache is ``$XDG_CACHE_HOME/understudy/spark-<name>``. Where Maven cannot be used, ``UNDERSTUDY_SPARK_JARS`` names a directory
that holds the same files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import attrs

from understudy.pipeline.spark.errors import JarsError

VARIABLE: Final = "UNDERSTUDY_SPARK_JARS"
FETCH_S: Final = 600.0
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>understudy.pipeline</groupId><artifactId>connector-jars</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)


@attrs.frozen
class ConnectorJars:
    """The jars of one connector.

    Attributes:
        name: for messages, and of the directory in the cache.
        pins: a line a jar: its SHA-256, and its coordinates ``group:artifact:version``. What it needs beside these is in PySpark.
        sign: a class of it: where Java finds that one, the connector is there.
    """

    name: str
    pins: str
    sign: str

    def find(self) -> list[Path]:
        """The files; fetches them if they are not there yet.

        Raises:
            JarsError: Maven is missing or fails, or a file is not the one that is pinned.
        """
        named = os.environ.get(VARIABLE)
        directory = Path(named) if named else _cache() / f"spark-{self.name}"
        if not named and not all((directory / file).exists() for file in self._files()):
            self._fetch(directory)
        return [self._checked(directory / file, digest) for file, digest in self._files().items()]

    def _files(self) -> dict[str, str]:
        """Digest by name of the file."""
        return {f"{artifact}-{version}.jar": digest for digest, _, artifact, version in self._pinned()}

    def _pinned(self) -> list[tuple[str, str, str, str]]:
        lines = (line.split() for line in self.pins.splitlines())
        return [(digest, *_coordinates(text)) for digest, text in lines]

    def _checked(self, path: Path, digest: str) -> Path:
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise JarsError(f"{path}: {error.strerror}; Spark's connector for {self.name} needs it") from error
        if found != digest:
            raise JarsError(f"{path} has the SHA-256 {found}, and {digest} is pinned: remove it")
        return path

    def _fetch(self, directory: Path) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise JarsError(
                f"Spark's connector for {self.name} is fetched with Maven, and mvn is not on PATH (Debian: apt-get install"
                f" maven); or put {', '.join(self._files())} into a directory, and name it in {VARIABLE}"
            )
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=directory) as folder:
                self._copy(maven, Path(folder))
                for file, digest in self._files().items():
                    self._checked(Path(folder) / file, digest).replace(directory / file)
        except OSError as error:
            raise JarsError(f"{directory}: {error.strerror}") from error

    def _copy(self, maven: str, folder: Path) -> None:
        pom = folder / "pom.xml"
        pom.write_text(
            _POM.format(dependencies="".join(_DEPENDENCY.format(*each[1:]) for each in self._pinned())),
            encoding="utf-8",
        )
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise JarsError(f"Maven has not fetched {', '.join(self._files())} within {FETCH_S:g} s") from error
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-1_000:]
            raise JarsError(f"Maven cannot fetch {', '.join(self._files())}: {said}")


def _coordinates(text: str) -> tuple[str, str, str]:
    group, artifact, version = text.split(":")
    return group, artifact, version


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy"


KAFKA: Final = ConnectorJars(
    "kafka",
    """\
33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3 org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0
f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767 org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0
dd54f5f1513b515ff79b29eb12755acd325a9ced65f506994a4b9dc513020f36 org.apache.spark:spark-tags_2.13:4.0.0
15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18 org.apache.kafka:kafka-clients:3.9.0
6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b org.apache.commons:commons-pool2:2.12.0
""",
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
)
DELTA: Final = ConnectorJars(
    "delta",
    """\
538511702aae0ef6973a6a70af3d4543c9009f8edbed786a00737e2d3cd7f04e io.delta:delta-spark_2.13:4.0.0
9bdb9fb450f1e119eba53feb427f331b0d09072d26485b8273883ad72c9a2e1d io.delta:delta-storage:4.0.0
""",
    "io.delta.sql.DeltaSparkSessionExtension",
)
