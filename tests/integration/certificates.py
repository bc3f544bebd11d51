"""Certificates of a test's own, and a client that shows one."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pika
import pika.exceptions


def certificate(
    folder: Path, names: str = "DNS:localhost,IP:127.0.0.1", *, subject: str = "/CN=localhost", file: str = ""
) -> tuple[Path, Path]:
    """A certificate that is its own CA, and its key: ``FILEcert.pem`` and ``FILEkey.pem``."""
    cert, key = folder / f"{file}cert.pem", folder / f"{file}key.pem"
    extension = ["-subj", subject, "-addext", f"subjectAltName={names}"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-keyout", str(key), "-out", str(cert), *extension]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def connect_tls(ca: Path, port: int, client: tuple[Path, Path], credentials: Any) -> Any:
    """Connect a client that shows a certificate."""
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(*client)
    options = pika.SSLOptions(context, "localhost")
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, credentials=credentials, ssl_options=options)
    )
