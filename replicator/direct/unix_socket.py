"""Links between brokers of one machine, over a Unix socket.

Beside its TCP port a broker listens on ``link.sock`` in its data directory. Handshake, frames and TLS are those of any link; what
is saved is TCP: of a message and its answer over loopback (1.2 KB there, 18 octets back) 5 of 14 us of CPU, and 10 of 28 us until
the answer is there.

What a broker publishes as its address is ``host:port``, and behind it, if there is a socket, ``unix:boot:device:inode:path``. A
dialer tries the socket first, if that is the running of the machine it is on itself and the file at ``path`` is the very one: in
another container, or on another machine, an equal path is another broker's or its own. Whatever is not as it should be, it
goes on with TCP, and only TCP can tell it that the process is gone: a killed process leaves its file behind.

Refused: the abstract namespace (no file, but no permissions either, and a namespace per network); a path longer than the 107
octets that the system takes, by way of ``/proc/self/fd`` (the dialers would need it too): such a broker has TCP alone.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, Self

import attrs

SOCKET_NAME: Final = "link.sock"
MAX_PATH_BYTES: Final = 107
SUPPORTED: Final = hasattr(socket, "AF_UNIX")

_MARK: Final = " unix:"
_MODE: Final = 0o600


class UnixSocketError(OSError):
    """No socket can be made here; why, for the log. Links go over TCP then."""


@cache
def boot_id() -> str:
    """Which running of which machine this is; "" where that is not told: then nothing goes over Unix sockets."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@attrs.frozen
class UnixAddress:
    """A socket file: where it is, and which one.

    Attributes:
        boot: of the machine (:func:`boot_id`).
        device, inode: of the file.
        path: absolute.
    """

    boot: str
    device: int
    inode: int
    path: str

    @classmethod
    def of(cls, path: str) -> Self:
        """The one at ``path`` on this machine."""
        found = os.lstat(path)
        if not stat.S_ISSOCK(found.st_mode):
            raise UnixSocketError(f"{path} is no socket")
        return cls(boot_id(), found.st_dev, found.st_ino, path)

    def joined_to(self, address: str) -> str:
        """The published address: the TCP address with this one behind it."""
        return f"{address}{_MARK}{self.boot}:{self.device}:{self.inode}:{self.path}"

    @property
    def is_here(self) -> bool:
        """This machine has it, and it has not been replaced."""
        try:
            return UnixAddress.of(self.path) == self
        except (OSError, ValueError):
            return False


def split_address(published: str) -> tuple[str, UnixAddress | None]:
    """The TCP address, and that of the socket if there is one that can be understood."""
    address, mark, rest = published.partition(_MARK)
    if not mark:
        return published, None
    boot, device, inode, path = (*rest.split(":", 3), "", "", "")[:4]
    if not boot or not device.isdecimal() or not inode.isdecimal() or not path.startswith("/"):
        return address, None
    return address, UnixAddress(boot, int(device), int(inode), path)


def bind(path: Path) -> tuple[socket.socket, UnixAddress]:
    """A socket bound to ``path``, which nobody but this user may connect to; what an earlier process left there is replaced.

    Raises:
        UnixSocketError: it cannot be, or nobody could find it.
        OSError: the file system will not have it.
    """
    where = str(path.absolute())
    if not SUPPORTED or not boot_id():
        raise UnixSocketError("this system has no Unix sockets, or does not tell which machine it is")
    try:
        length = len(where.encode())
    except UnicodeEncodeError:
        raise UnixSocketError(f"{where!a} cannot be published: it is not UTF-8") from None
    if length > MAX_PATH_BYTES:
        raise UnixSocketError(f"{where} is {length} octets long, a socket's path has at most {MAX_PATH_BYTES}")
    with suppress(FileNotFoundError):
        UnixAddress.of(where)  # anything but a socket is not ours to remove
        os.unlink(where)  # noqa: PTH108  # a str, like everything here
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(where)
        os.chmod(where, _MODE)  # noqa: PTH101  # nobody can connect before it listens
        return bound, UnixAddress.of(where)
    except BaseException:
        bound.close()
        raise


def connect(address: UnixAddress) -> socket.socket | None:
    """A connected socket, or None if it is not on this machine, has been replaced, or nobody listens there now."""
    if not SUPPORTED or not address.is_here:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(address.path)  # it succeeds or fails at once: unlike TCP's, it has nobody to wait for
    except OSError:
        sock.close()
        return None
    return sock


def remove(address: UnixAddress) -> None:
    """Take the file away, unless somebody else has replaced it."""
    if address.is_here:
        with suppress(OSError):
            os.unlink(address.path)  # noqa: PTH108  # as above
