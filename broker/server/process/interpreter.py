"""Interpreter: which Python runs, and whether it was built with profile-guided optimisation.

Half of a broker's CPU is the interpreter's. What a build is worth: docs/performance.md, The interpreter. Debian,
Ubuntu, Fedora, the official images and conda build theirs optimised. ``pyenv install`` does not, unless PYTHON_CONFIGURE_OPTS
says ``--enable-optimizations``.

``scripts/_env`` runs this file with each interpreter that it finds, before anything is installed: so it imports the standard
library alone. Exit code 0: optimised; 1: not.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any, Final

_PROFILE_FLAGS: Final = ("-fprofile-use", "-fprofile-instr-use")


def is_optimised(build: Mapping[str, Any]) -> bool:
    """Say whether an interpreter was built with profile-guided optimisation, by what its build left behind.

    Args:
        build: the variables of ``sysconfig`` in that interpreter.

    Three signs: configure was told so; the compiler was told so; or the package has lost the flag that configure always writes
    down. Debian and conda call ``make profile-opt`` themselves, then take that flag out, so that extensions are not built with it.
    """
    if "--enable-optimizations" in str(build.get("CONFIG_ARGS", "")):
        return True
    if any(flag in str(build.get("PY_CORE_CFLAGS", "")) for flag in _PROFILE_FLAGS):
        return True
    return bool(build.get("PGO_PROF_GEN_FLAG")) and not build.get("PGO_PROF_USE_FLAG")


def interpreter() -> dict[str, Any]:
    """The interpreter of this process, for the log: ``python``, ``path`` and ``optimised``."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "path": sys.executable,
        "optimised": is_optimised(sysconfig.get_config_vars()),
    }


if __name__ == "__main__":
    sys.exit(not is_optimised(sysconfig.get_config_vars()))
