"""Runtimes of programs: the interpreter of their language, their pinned libraries, and the version that a row shows."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import attrs

from scripts.compatibility_tools import sources
from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.kept import Say, keep, run
from scripts.compatibility_tools.program_table import Program

FOLDERS: Final = {
    "python": Path(__file__).with_name("programs"),
    "java": Path(__file__).with_name("java"),
    "node": Path(__file__).with_name("node"),
}
"""Sources of the programs, by language."""
JAVA_PACKAGE: Final = "understudy.compatibility"
_MAVEN: Final = "{http://maven.apache.org/POM/4.0.0}"


@attrs.frozen(kw_only=True)
class Launch:
    """How a program is started.

    Attributes:
        command: words.
        environment: variables beside those of this process.
        version: of the package that the program is about.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    version: str


def prepare(program: Program, say: Say) -> Launch:
    """Install what ``program`` needs, once.

    Raises:
        CompatibilityError: a tool is missing, or a registry does not give a library.
    """
    return {"python": _python, "java": _java, "node": _node}[program.language](program, say)


def pinned_version(program: Program) -> str:
    """The version of the package that ``program`` is about.

    Raises:
        CompatibilityError: the pins of its language have no such package.
    """
    if program.language == "python":
        return sources.installed_version(program.requirements, program.package)
    pins = FOLDERS[program.language] / {"java": "pom.xml", "node": "package.json"}[program.language]
    if program.language == "node":
        found = json.loads(pins.read_text(encoding="utf-8"))["dependencies"].get(program.package)
    else:
        dependencies = ET.parse(pins).getroot().iter(f"{_MAVEN}dependency")  # noqa: S314 - our own file
        versions = {each.findtext(f"{_MAVEN}artifactId"): each.findtext(f"{_MAVEN}version") for each in dependencies}
        found = versions.get(program.package)
    if not found:
        raise CompatibilityError(f"{pins} pins no {program.package}")
    return str(found)


def _python(program: Program, say: Say) -> Launch:
    python = sources.environment(program.requirements, say)
    folder = FOLDERS["python"]
    return Launch(
        command=(str(python), str(folder / program.file)),
        environment={"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        version=pinned_version(program),
    )


def _java(program: Program, say: Say) -> Launch:
    """All Java programs share one set of libraries, which Maven copies, and are compiled together."""
    tools = {tool: _tool(tool, program, "Maven and a JDK of 17 or later") for tool in ("mvn", "javac", "java")}
    own = FOLDERS["java"]

    def make(folder: Path) -> None:
        say(f"{program.name}: Maven copies the libraries of {own / 'pom.xml'}")
        shutil.copy(own / "pom.xml", folder)
        run(
            [tools["mvn"], "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=libraries"],
            "Maven cannot copy the libraries of the Java programs",
            folder,
        )
        run(
            [tools["javac"], "-d", "classes", "-cp", "libraries/*", *map(str, sorted(own.glob("*.java")))],
            "javac cannot compile the Java programs",
            folder,
        )

    folder = keep("java-programs", _identity(own), make)
    path = f"{folder / 'classes'}:{folder / 'libraries'}/*"
    main = f"{JAVA_PACKAGE}.{program.file.removesuffix('.java')}"
    return Launch(
        command=(tools["java"], "-Xmx256m", "-XX:+UseSerialGC", "-cp", path, main),
        environment={},
        version=pinned_version(program),
    )


def _node(program: Program, say: Say) -> Launch:
    tools = {tool: _tool(tool, program, "Node of 20 or later, with npm") for tool in ("npm", "node")}
    own = FOLDERS["node"]

    def make(folder: Path) -> None:
        say(f"{program.name}: npm installs the packages of {own / 'package-lock.json'}")
        for path in own.iterdir():
            shutil.copy(path, folder)
        words = ("ci", "--ignore-scripts", "--no-audit", "--no-fund")
        run([tools["npm"], *words], "npm cannot install the packages", folder)

    folder = keep("node-programs", _identity(own), make)
    return Launch(command=(tools["node"], str(folder / program.file)), environment={}, version=pinned_version(program))


def _tool(tool: str, program: Program, of: str) -> str:
    found = shutil.which(tool)
    if found is None:
        raise CompatibilityError(f"the program {program.name} needs {tool}, which is not installed: {of}")
    return found


def _identity(folder: Path) -> str:
    """A digest of all files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
