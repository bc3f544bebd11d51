"""Compiles the modules of modules.txt into the understudy that is installed beside the interpreter that runs this.

Run by scripts/compile, in a directory that holds no understudy. The sources stay where they are: Python prefers an extension
module to the .py file beside it, and tracebacks still name the latter.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from mypyc.build import mypycify
from setuptools import setup

import understudy

GROUP = "understudy"
MYPY_SETTINGS = """
[mypy]
mypy_path = .
explicit_package_bases = true
namespace_packages = true
strict = true
follow_imports = silent
"""


def modules() -> list[str]:
    lines = Path(__file__).with_name("modules.txt").read_text().splitlines()
    return [f"understudy/{line}" for line in lines if line and not line.startswith("#")]


def refused(path: Path) -> list[str]:
    """What mypyc 2.4 accepts and makes into something else than Python does."""
    found: list[str] = []
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            caught: defaultdict[str, set[str]] = defaultdict(set)
            for inner in ast.walk(node):
                if isinstance(inner, ast.ExceptHandler) and inner.name and inner.type:
                    caught[inner.name].add(ast.unparse(inner.type))
            found += [
                f"{path}:{node.lineno}: {node.name} binds {name} to {' and '.join(sorted(types))}; the second raises TypeError"
                for name, types in caught.items()
                if len(types) > 1
            ]
        if isinstance(node, ast.Call) and any(isinstance(argument, ast.Starred) for argument in node.args):
            function = node.func
            if isinstance(function, ast.Attribute) and ast.unparse(function.value) == "super()":
                found.append(f"{path}:{node.lineno}: super() with *args hands over the tuple itself")
    return found


def main() -> None:
    site = Path(understudy.__file__).resolve().parent.parent
    if site.name != "site-packages":
        sys.exit(f"scripts/compile: {site} is no installed understudy; sources are not compiled in place")
    work = Path(tempfile.mkdtemp(prefix="understudy-compile-"))
    try:
        shutil.copytree(site / "understudy", work / "understudy", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        os.chdir(work)
        paths = modules()
        problems = [problem for path in paths for problem in refused(Path(path))]
        if problems:
            sys.exit("\n".join(["scripts/compile:", *problems]))
        Path("mypy.ini").write_text(MYPY_SETTINGS)
        extensions = mypycify(
            ["--config-file", "mypy.ini", *paths], opt_level="3", debug_level="0", multi_file=True, group_name=GROUP
        )
        setup(
            name=f"{GROUP}-compiled",
            packages=[],
            ext_modules=extensions,
            script_args=["--quiet", "build_ext", "--build-lib", "built"],
        )
        built = list(Path("built").rglob("*.so"))
        if len(built) != len(paths) + 1:
            sys.exit(
                f"scripts/compile: {len(paths)} modules gave {len(built)} files; one each and the group's are expected"
            )
        for file in built:
            shutil.copy2(file, site / file.relative_to("built"))
    finally:
        shutil.rmtree(work)


main()
