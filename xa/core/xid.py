"""Names of transactions and branches.

A transaction is named by its global id: 64 hexadecimal digits, those of a time-based and of a random UUID. A branch is named by
the format id of this manager, the global id, and a branch id: the name of the resource manager and a digest of the job. So the
branches that a resource manager lists can be told apart by program, job and resource manager without the state server.

Several programs may work on one transaction. Each that joins has a number, from 1, and branches of its own. Their *labels* are
``bank~1``: resource manager and number. The label of a branch of the program that began the transaction is the name of the
resource manager alone, in which ``~`` cannot stand. The label stands in the branch id, and in the state server's record.

All of it is printable ASCII, since resource managers and tools print ids.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

FORMAT_ID: Final = 0x55584131
"""``UXA1``: the branches of this transaction manager."""
NO_FORMAT: Final = -1
"""In the place of a format id: the resource manager names the branch by a text, which is the global id (X/Open: no XID)."""
MAX_ID_OCTETS: Final = 64
JOB_DIGITS: Final = 16
PROGRAM_MARK: Final = "~"
EMPTY_ID: Final = "%"
"""An empty global id as people see and name it. No other id looks so: `printable` writes ``%25`` for its octet."""


class Xid(NamedTuple):
    """The name of a branch.

    Attributes:
        format_id: 0 to 2**31 - 1; says which program made the ids. `NO_FORMAT` of a branch that another program has named freely.
        global_id: of the transaction, 1 to 64 octets; of another program's branch also none, and of `NO_FORMAT` up to 200.
        branch_id: of the branch, 0 to 64 octets; those of this transaction manager have at least 1.
    """

    format_id: int
    global_id: bytes
    branch_id: bytes

    def __str__(self) -> str:
        if self.format_id == NO_FORMAT:
            return self.gid
        return f"{self.format_id}:{self.gid}:{printable(self.branch_id)}"

    @property
    def gid(self) -> str:
        """The global id as people see and name it: at most 600 characters, never an empty text."""
        return printable(self.global_id) or EMPTY_ID

    @property
    def is_ours(self) -> bool:
        return self.format_id == FORMAT_ID

    @property
    def job_digits(self) -> str:
        """The digest of the job, of a branch of this manager."""
        return self.branch_id.rpartition(b".")[2].decode("ascii", "replace")


def printable(octets: bytes) -> str:
    """The octets as text; each that is no visible ASCII character, and ``%``, as ``%XX``."""
    return "".join(chr(octet) if 0x21 <= octet <= 0x7E and octet != 0x25 else f"%{octet:02X}" for octet in octets)


def global_id(time_based: bytes, at_random: bytes) -> str:
    """The global id of a new transaction: 64 characters.

    Args:
        time_based: the 16 octets of a UUID of version 1.
        at_random: the 16 octets of a UUID of version 4.
    """
    assert len(time_based) == len(at_random) == 16
    return time_based.hex() + at_random.hex()


def job_digits(job: str) -> str:
    """The digest of a job that stands in branch ids: 16 hexadecimal digits."""
    return hashlib.blake2b(job.encode(), digest_size=JOB_DIGITS // 2).hexdigest()


def branch_of(gid: str, label: str, job: str) -> Xid:
    """The branch of a label in a transaction."""
    return Xid(FORMAT_ID, gid.encode("ascii"), f"{label}.{job_digits(job)}".encode("ascii"))


def label_of(resource: str, program: int) -> str:
    """The label of the branch of one resource manager and one joined program."""
    return f"{resource}{PROGRAM_MARK}{program}"


def resource_of(label: str) -> str:
    """The resource manager of a branch."""
    return label.partition(PROGRAM_MARK)[0]


def program_of(label: str) -> int:
    """The number of the program that a branch belongs to; 0: the one that began the transaction."""
    _, _, number = label.partition(PROGRAM_MARK)
    return int(number) if number else 0
