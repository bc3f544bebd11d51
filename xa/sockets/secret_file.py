"""Files that prove who a program is: a shared secret, the key of a certificate. Only their user may read them."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import Final

from understudy.xa.core.errors import ConfigError

MIN_SECRET_OCTETS: Final = 16
MAX_SECRET_OCTETS: Final = 1024
_READ: Final = 1 << 16


def read_secret(path: str, place: str) -> bytes:
    """The shared secret of a file, without the end of its line.

    Args:
        path: of the file; ``~`` is this user's home.
        place: the option or key that names the file, for errors.

    Raises:
        ConfigError: the file cannot be read, others may read it, or its secret has not 16 to 1024 octets.
    """
    secret = _private(path, place).strip()
    if not MIN_SECRET_OCTETS <= len(secret) <= MAX_SECRET_OCTETS:
        raise ConfigError(
            f"{place}: the secret in {path} has {len(secret)} octets, and {MIN_SECRET_OCTETS} to {MAX_SECRET_OCTETS} are "
            "wanted: `openssl rand -hex 32` makes one"
        )
    return secret


def check_key_file(path: str, place: str) -> None:
    """A file with a private key, which only its user may read.

    Raises:
        ConfigError: the file cannot be read, or others may read it.
    """
    _private(path, place)


def _private(path: str, place: str) -> bytes:
    """The bits of the group are the operator's business: no file gets them by itself."""
    try:
        with Path(path).expanduser().open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            octets = file.read(_READ)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        raise ConfigError(f"{place}: the file {path} cannot be read: {error}") from error
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"{place}: every user of this machine may read or change {path}, whose mode is {mode:04o}: "
            f"chmod 600 {shlex.quote(path)}"
        )
    return octets
