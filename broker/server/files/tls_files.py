"""TlsFiles: the certificate files of one section. New connections use changed files; open connections stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from understudy.broker.server.files.watched_files import WatchedFiles

if TYPE_CHECKING:
    from understudy.broker.config import TlsConfig

T = TypeVar("T")


class TlsFiles(WatchedFiles[T]):
    """Files of one section, and what is made of them; see `WatchedFiles`.

    Args:
        section: of the configuration, such as ``amqp.tls``.
        config: names the files.
        make: reads the files; an UnderstudyError if they cannot be used.
    """

    def __init__(self, section: str, config: TlsConfig, make: Callable[[], T]) -> None:
        paths = [path for path in (config.cert, config.key, config.ca) if path is not None]
        super().__init__("certificate files are", section, paths, make)
