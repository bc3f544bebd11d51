"""scripts/_env and scripts/_needs on a machine that lacks something: with which Python, which packages, which words."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JAVA = "echo 'openjdk version \"{}\" 2026-01-20' >&2"
TOOLS = ("bash", "cat", "cksum", "dirname", "flock", "rm")


class Place:
    """A copy of what scripts/_env needs, and a PATH of interpreters that make no environment: they only say that they should."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        for name in ("scripts/_env", "scripts/_needs", "broker/server/process/interpreter.py", "pyproject.toml"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.folders = [folder / "first", folder / "second", folder / "tools"]
        for each in self.folders:
            each.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.folders[2] / tool).symlink_to(found)

    def python(self, number: int, name: str, *, optimised: bool, ensurepip: bool = True) -> str:
        """Put an interpreter into the first or the second folder of PATH; where it is."""
        path = self.folders[number] / name
        path.write_text(
            f"""#!{shutil.which("bash")}
case "$*" in
*interpreter.py) exit {0 if optimised else 1} ;;
*ensurepip*) exit {0 if ensurepip else 1} ;;
'-m venv '*) echo "asked: $0" >&2; exit 1 ;;
*) exec {shlex.quote(sys.executable)} "$@" ;;
esac
"""
        )
        path.chmod(0o755)
        return str(path)

    def program(self, name: str, text: str = "") -> Path:
        """Put a shell script into the first folder of PATH."""
        path = self.folders[0] / name
        path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
        path.chmod(0o755)
        return path

    def user(self, number: int) -> None:
        """Run as this user from now on, as scripts see it."""
        self.program("id", f"echo {number}")

    def sourced(self, *programs: str, **variables: str) -> str:
        """Stderr of `source scripts/_env - PROGRAMS`, which ends with exit code 1: no interpreter here makes an environment."""
        bash = self.folders[2] / "bash"
        words = " ".join(map(shlex.quote, programs))
        done = subprocess.run(
            [bash, "-c", f"set -euo pipefail; source {shlex.quote(str(self.root))}/scripts/_env - {words}", "scripts/test"],
            env={"PATH": ":".join(map(str, self.folders)), "HOME": str(self.root), **variables},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        return done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.user(1000)
    return made


def test_an_optimised_interpreter_is_taken_before_others(place: Place) -> None:
    place.python(0, "python3.11", optimised=False)
    place.python(0, "python3.12", optimised=False)
    taken = place.python(1, "python3.11", optimised=True)
    said = place.sourced()
    assert f"({taken}, optimised)" in said
    assert f"asked: {taken}\n" in said


def test_of_two_that_are_not_the_first_is_taken_and_it_is_said(place: Place) -> None:
    place.python(0, "python3", optimised=False)
    taken = place.python(1, "python3.12", optimised=False)
    said = place.sourced()
    assert f"({taken}, built without profile-guided optimisation: " in said
    assert f"asked: {taken}\n" in said


def test_one_that_cannot_make_an_environment_is_taken_last(place: Place) -> None:
    place.python(0, "python3.11", optimised=True, ensurepip=False)
    taken = place.python(1, "python3.13", optimised=False)
    assert f"asked: {taken}\n" in place.sourced()


def test_the_user_has_the_last_word(place: Place) -> None:
    place.python(0, "python3.11", optimised=True)
    taken = place.python(1, "my-python", optimised=False)
    assert f"asked: {taken}\n" in place.sourced(UNDERSTUDY_PYTHON=taken)


def test_no_interpreter_is_an_error_that_names_the_packages(place: Place) -> None:
    said = place.sourced()
    assert "Python 3.11 or later with venv" in said
    assert "sudo apt-get install --no-install-recommends ca-certificates python3 python3-venv\n" in said


# -- programs of the system -------------------------------------------------------------------------------------------


def test_a_missing_program_ends_the_script_before_the_environment_is_made(place: Place) -> None:
    place.python(0, "python3", optimised=True)
    said = place.sourced("openssl", "java", "zookeeper-jars", "kafka-jars", "prometheus")
    assert said == (
        "understudy: scripts/test needs what is not installed here:\n"
        "    openssl\n"
        "    Java 17 or later\n"
        "    Maven, which fetches ZooKeeper\n"
        "    Maven, which fetches Kafka\n"
        "    prometheus and promtool\n"
        "  On Debian and Ubuntu: sudo apt-get install --no-install-recommends openssl default-jre-headless maven prometheus\n"
    )


def test_a_wish_is_named_and_the_script_goes_on(place: Place) -> None:
    taken = place.python(0, "python3", optimised=True)
    said = place.sourced("java?")
    assert said.startswith("understudy: tests that need one of these will fail:\n    Java 17 or later\n")
    assert f"asked: {taken}\n" in said


@pytest.mark.parametrize(
    ("name", "met_by"),
    [
        ("openssl", {"openssl"}),
        ("prometheus", {"prometheus", "promtool"}),
        ("haproxy", {"haproxy"}),
        ("java", {"java"}),
        ("zookeeper-jars", {"mvn"}),
        ("kafka-jars", {"mvn"}),
        ("postgresql", {"initdb"}),
    ],
)
def test_a_program_on_path_is_enough(place: Place, name: str, met_by: set[str]) -> None:
    taken = place.python(0, "python3", optimised=True)
    for each in met_by:
        place.program(each, JAVA.format(17))
    assert f"asked: {taken}\n" in place.sourced(name)


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_412"])
def test_an_older_java_is_not_enough(place: Place, version: str) -> None:
    place.python(0, "python3", optimised=True)
    place.program("java", JAVA.format(version))
    assert "    Java 17 or later\n" in place.sourced("java")


def test_variables_and_the_cache_replace_programs(place: Place) -> None:
    taken = place.python(0, "python3", optimised=True)
    (place.root / ".cache/understudy/kafka-4.1.1").mkdir(parents=True)
    names = ("zookeeper-jars", "kafka-jars", "postgresql")
    said = place.sourced(*names, UNDERSTUDY_ZOOKEEPER_JARS="/jars", UNDERSTUDY_POSTGRESQL_BIN="/bin")
    assert f"asked: {taken}\n" in said


def test_root_on_debian_installs_all_at_once(place: Place) -> None:
    place.user(0)
    first, second, _ = place.folders
    place.python(1, "made", optimised=True)  # apt-get "installs" it
    calls = place.root / "calls"
    place.program(
        "apt-get",
        f"""echo "$DEBIAN_FRONTEND $*" >>{calls}
[[ $1 == update ]] && exit
printf '#!{shutil.which("bash")}\\n%s\\n' {shlex.quote(JAVA.format(21))} >{first}/java
printf '#!{shutil.which("bash")}\\nexec {second}/made "$@"\\n' >{first}/python3
{shutil.which("chmod")} 755 {first}/java {first}/python3""",
    )
    said = place.sourced("java", "openssl?")
    assert calls.read_text() == (
        "noninteractive update -qq\n"
        "noninteractive install -y -qq --no-install-recommends ca-certificates python3 python3-venv default-jre-headless openssl\n"
    )
    assert "tests that need one of these will fail:\n    openssl\n" in said  # this apt-get has not installed it
    assert f"asked: {second}/made\n" in said


def test_root_is_told_what_apt_get_could_not_install(place: Place) -> None:
    place.user(0)
    taken = place.python(0, "python3", optimised=True)
    place.program("apt-get", "echo no network >&2; exit 100")
    said = place.sourced("java")
    assert "no network\nunderstudy: apt-get could not install default-jre-headless; its message stands above.\n" in said
    assert "understudy: scripts/test needs what is not installed here:\n" in said
    assert taken not in said
