"""Certificates for the TLS port of the broker under test, and for suites that come without theirs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from scripts.compatibility_tools.errors import CompatibilityError

_DAYS: Final = "30"
_NAMES: Final = "subjectAltName=DNS:localhost,IP:127.0.0.1"
_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_BROKEN: Final = "-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n"


def make_certificates(folder: Path) -> None:
    """Make a CA and, signed by it, certificates of server and client; each as NAME_certificate.pem and NAME_key.pem.

    `client_certificate_broken.pem` and `client_key_broken.pem` cannot be read as certificate and key.

    Raises:
        CompatibilityError: openssl is not there, or fails.
    """
    folder.mkdir(parents=True)
    _openssl(folder, "req", "-x509", *_KEY, "-days", _DAYS, "-subj", "/CN=compatibility CA", *_files("ca"))
    for name in ("server", "client"):
        signed = ("-CA", "ca_certificate.pem", "-CAkey", "ca_key.pem", "-addext", _NAMES)
        _openssl(folder, "req", "-x509", *_KEY, "-days", _DAYS, "-subj", "/CN=localhost", *signed, *_files(name))
    for name in ("certificate", "key"):
        (folder / f"client_{name}_broken.pem").write_text(_BROKEN, encoding="utf-8")


def give_certificates(made: Path, target: Path) -> None:
    """Copy the certificates to where a suite looks for them; a file of the suite's own stays."""
    target.mkdir(parents=True, exist_ok=True)
    for path in made.glob("*.pem"):
        if not (target / path.name).exists():
            shutil.copy(path, target)


def _files(name: str) -> tuple[str, ...]:
    return ("-keyout", f"{name}_key.pem", "-out", f"{name}_certificate.pem")


def _openssl(folder: Path, *words: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise CompatibilityError(
            "openssl is not on PATH, which makes the certificates (Debian: apt-get install openssl)"
        )
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompatibilityError(f"openssl {' '.join(words)} fails: {done.stderr.strip()[-500:]}")
