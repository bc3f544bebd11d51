"""Examples of the docs as packages of their own, installed in a directory; no tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page of the docs, as they stand there."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def project_of(page: str) -> str:
    """The one block of a page that is a ``pyproject.toml``."""
    (project,) = [block for block in blocks(page, "toml") if "[project]" in block]
    return project


def install(folder: Path, project: str, modules: list[str]) -> Path:
    """Install a project with its modules, in the order of its ``py-modules``. Returns the directory for ``PYTHONPATH``."""
    settings = tomllib.loads(project)
    about = settings["project"]
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items())
        for group, each in about["entry-points"].items()
    )
    distribution = f"{about['name'].replace('-', '_')}-{about['version']}"
    wheel = folder / f"{distribution}-py3-none-any.whl"  # by hand: no build backend is needed, nor found offline
    names = settings["tool"]["setuptools"]["py-modules"]
    files = {
        **{f"{name}.py": module for name, module in zip(names, modules, strict=True)},
        f"{distribution}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n",
        f"{distribution}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{distribution}.dist-info/entry_points.txt": points,
    }
    files[f"{distribution}.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--no-index", "--target", target, wheel], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return target
