"""Source trees and environments of suites: downloads, unpacks, installs; both are kept (`kept`)."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.kept import Say, ask, keep, run
from scripts.compatibility_tools.suites import Suite

REQUIREMENTS: Final = Path(__file__).with_name("requirements")
PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
_NO_SUCH_VERSION: Final = "No matching distribution found"
_NO_VERSIONS: Final = "(from versions: none)"


def published_tree(suite: Suite, version: str, say: Say) -> Path:
    """The unpacked source package of PyPI; downloads it once.

    Raises:
        CompatibilityError: the suite is in no source package, PyPI has no such version, cannot be reached, or gives another file.
    """
    if suite.needs_source:
        raise CompatibilityError(
            f"the source package of {suite.name} on PyPI has no tests: name a tree of {suite.origin} with --source DIR"
        )

    def make(folder: Path) -> None:
        say(f"{suite.name} {version}: downloading the source package")
        package = _download(suite, version, folder / "package")
        if version == suite.version:
            _check_digest(package, suite.sha256)
        _unpack(package, folder / "tree")

    folder = keep(f"{suite.name}-{version}-source", version, make)
    (tree,) = (folder / "tree").iterdir()
    return tree


def _download(suite: Suite, version: str, target: Path) -> Path:
    wanted = f"{suite.name}=={version}"
    # pip asks the package for its name and version, for which it needs the package's build tool.
    done = _pip(sys.executable, "download", "--no-deps", "--no-binary", suite.name, "--dest", str(target), wanted)
    if done.returncode:
        raise CompatibilityError(why_no_download(wanted, done.stdout + done.stderr))
    packages = [path for path in target.iterdir() if path.name.endswith(".tar.gz")]
    if len(packages) != 1:
        raise CompatibilityError(f"PyPI gave {[path.name for path in target.iterdir()]} for {wanted}, not one .tar.gz")
    return packages[0]


def why_no_download(wanted: str, said: str) -> str:
    """In one line, why pip could not download ``wanted``, of what pip ``said``.

    Of an index that it cannot reach, pip says that there is no version at all.
    """
    lines = [line.strip() for line in said.splitlines() if line.startswith("ERROR")]
    if any(_NO_VERSIONS in line for line in lines):
        return f"cannot download {wanted}: the package index cannot be reached, or has no package of this name"
    if any(_NO_SUCH_VERSION in line for line in lines):
        return f"cannot download {wanted}: the package index has no source package of this version"
    return f"cannot download {wanted}: {lines[-1] if lines else said.strip()[-500:]}"


def _unpack(package: Path, target: Path) -> None:
    with tarfile.open(package) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.2 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(target)  # noqa: S202 - the filter keeps it in `target`; where there is none, the package is pinned


def _check_digest(package: Path, sha256: str) -> None:
    found = hashlib.sha256(package.read_bytes()).hexdigest()
    if found != sha256:
        raise CompatibilityError(f"{package.name} has the SHA-256 {found}, and {sha256} is pinned")


def environment(name: str, say: Say) -> Path:
    """The Python of the virtual environment with ``requirements/NAME.txt``; installs it once.

    Raises:
        CompatibilityError: pip cannot install a requirement.
    """
    requirements = REQUIREMENTS / f"{name}.txt"
    pins = requirements.read_text(encoding="utf-8")
    identity = hashlib.sha256(f"{sys.version}\n{sys.base_prefix}\n{pins}".encode()).hexdigest()

    def make(folder: Path) -> None:
        say(f"{name}: installing {len(pins.splitlines())} pinned packages into {folder}")
        run([sys.executable, "-m", "venv", str(folder)], f"cannot make the environment {folder}")
        run(
            [str(folder / "bin" / "python"), *PIP, "install", "--requirement", str(requirements)],
            f"pip cannot install {requirements}",
        )

    return keep(f"{name}-environment", identity, make) / "bin" / "python"


def named_tree(suite: Suite, tree: Path) -> Path:
    """The tree that a user names, as an absolute path.

    Raises:
        CompatibilityError: it is no folder, or lacks the tests of the suite.
    """
    if not tree.is_dir():
        raise CompatibilityError(f"the source {tree} of {suite.name} is no folder")
    missing = [path for path in suite.tests if not (tree / path).exists()]
    if missing:
        raise CompatibilityError(
            f"the source {tree} has no {' and no '.join(missing)}: it is no tree of {suite.name} with tests ({suite.origin})"
        )
    return tree.absolute()


def copy_tree(tree: Path, target: Path) -> None:
    """Copy ``tree``, so that a run may write into it."""
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "target")
    shutil.copytree(tree, target, ignore=ignored, symlinks=True)


def _pip(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    return ask([python, *PIP, *words])


def installed_version(name: str, package: str) -> str:
    """The version of ``package`` that ``requirements/NAME.txt`` pins."""
    for pin in (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        pinned, _, version = pin.partition("==")
        if pinned == package:
            return version
    raise CompatibilityError(f"requirements/{name}.txt pins no {package}")
