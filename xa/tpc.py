"""The broker as a PEP 249 module with two-phase commit, for transaction managers that drive such modules.

::

    connection = tpc.connect(["127.0.0.1:5672"])
    connection.tpc_begin(connection.xid(1, "order 17", "queues"))
    connection.channel.basic_publish(message, exchange="", routing_key="orders")
    connection.tpc_prepare()
    connection.tpc_commit()

There are no cursors: what is done, is done on `TpcConnection.channel`. An error of the broker that means a rollback is
`IntegrityError`, an unknown branch `ProgrammingError`, a lost connection `OperationalError`, a branch that an operator has
completed `DataError`.

Source: PEP 249, Optional Two-Phase Commit Extensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.errors import ResourceManagerError
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.xid import MAX_ID_OCTETS
from understudy.xa.core.xid import Xid as Branch
from understudy.xa.resource_managers.broker import BrokerResource

apilevel: Final = "2.0"
threadsafety: Final = 1
paramstyle: Final = "qmark"


class Error(Exception):
    """Base of all errors of this module."""


class InterfaceError(Error):
    """The module was called wrongly."""


class DatabaseError(Error):
    """The broker did not do it."""


class DataError(DatabaseError):
    """An operator has completed the branch; the text says how."""


class OperationalError(DatabaseError):
    """The broker cannot be reached, or the answer is lost."""


class IntegrityError(DatabaseError):
    """The branch is rolled back."""


class ProgrammingError(DatabaseError):
    """There is no such branch, or the call is out of turn."""


class NotSupportedError(DatabaseError):
    """The broker has no transactions but distributed ones on this connection."""


class Xid(NamedTuple):
    """A transaction id, as PEP 249 has it."""

    format_id: int
    gtrid: str
    bqual: str


def connect(
    addresses: Sequence[str],
    *,
    vhost: str = "/",
    user: str = "guest",
    password: str = "guest",  # noqa: S107  # the default login of every AMQP broker
    timeout_s: float = 30,
    form: str = "methods",
    tls: bool = False,
    tls_ca: str = "",
    tls_cert: str = "",
    tls_key: str = "",
) -> TpcConnection:
    """Connect to the first broker that serves.

    Args:
        addresses: ``host:port`` of each broker of the group.
        vhost: where the queues are.
        user: of the broker.
        password: of the user.
        timeout_s: for a broker that serves, and for each answer.
        form: `methods` of class 100, or `messages`.
        tls: speak TLS.
        tls_ca: path of PEM certificates, one of which has signed the broker's; "" are those of the system.
        tls_cert: path of a PEM certificate chain, for brokers that ask for one.
        tls_key: path of its private key.

    Raises:
        OperationalError: no broker serves.
    """
    options: dict[str, Any] = {"addresses": list(addresses), "vhost": vhost, "user": user, "password": password}
    options |= {"timeout_s": timeout_s, "form": form}
    options |= {"tls": tls, "tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
    return TpcConnection(BrokerResource("broker", options))


class TpcConnection:
    """One connection with one channel. A connection has one transaction at a time."""

    def __init__(self, resource: BrokerResource) -> None:
        self._resource = resource
        self._xid: Xid | None = None
        self._prepared = False
        try:
            resource.open()
        except ResourceManagerError as error:
            raise OperationalError(str(error)) from error

    @property
    def channel(self) -> Any:
        """An `amqp.Channel`: what is published and acknowledged on it belongs to the transaction."""
        return self._resource.resource

    def xid(self, format_id: int, gtrid: str, bqual: str) -> Xid:
        """A transaction id.

        Raises:
            InterfaceError: the format id is no 31-bit number, or an id has not 1 to 64 characters of one octet (ISO 8859-1);
                `bqual` may be empty.
        """
        if not 0 <= format_id < 1 << 31:
            raise InterfaceError(f"format id {format_id} is not 0 to 2147483647")
        _branch((format_id, gtrid, bqual))
        return Xid(format_id, gtrid, bqual)

    def tpc_begin(self, xid: Xid) -> None:
        """Begin: work on the channel belongs to the transaction from now on."""
        if self._xid is not None:
            raise ProgrammingError(f"transaction {self._xid} is not over")
        _check(self._resource.start(_branch(xid), Flag.NONE))
        self._xid, self._prepared = xid, False

    def tpc_prepare(self) -> None:
        """The first phase. Afterwards the transaction survives this connection, and the broker."""
        xid = self._required()
        try:
            _check(self._resource.end(_branch(xid), Flag.NONE))
            _check(self._resource.prepare(_branch(xid)))
        except IntegrityError:
            self._xid = None
            self._resource.rollback(
                _branch(xid)
            )  # a branch that can only be rolled back is known to the broker until it is
            raise
        self._prepared = True

    def tpc_commit(self, xid: Xid | None = None) -> None:
        """The second phase, or without `tpc_prepare` both at once. With a xid: of a transaction that `tpc_recover` lists."""
        if xid is not None:
            _check(self._resource.commit(_branch(self._other(xid)), one_phase=False))
            return
        own = self._required()
        if not self._prepared:
            _check(self._resource.end(_branch(own), Flag.NONE))
        answer = self._resource.commit(_branch(own), one_phase=not self._prepared)
        self._xid = None
        _check(answer)

    def tpc_rollback(self, xid: Xid | None = None) -> None:
        """Roll back this connection's transaction, or one that `tpc_recover` lists."""
        if xid is not None:
            _check(self._resource.rollback(_branch(self._other(xid))))
            return
        own = self._required()
        if not self._prepared:
            self._resource.end(_branch(own), Flag.NONE)
        answer = self._resource.rollback(_branch(own))
        self._xid = None
        if answer.code is not XaCode.NOTA and not answer.code.rolled_back:
            _check(answer)

    def tpc_recover(self) -> list[Xid]:
        """The prepared transactions of the vhost, of every program."""
        try:
            found = [one.xid for one in self._resource.recover() if one.state == "prepared"]
        except ResourceManagerError as error:
            raise OperationalError(str(error)) from error
        return [Xid(one.format_id, one.global_id.decode("latin-1"), one.branch_id.decode("latin-1")) for one in found]

    def commit(self) -> None:
        """Refused: only ``tpc_commit`` commits."""
        raise self._only_tpc("commit")

    def rollback(self) -> None:
        """Refused: only ``tpc_rollback`` rolls back."""
        raise self._only_tpc("rollback")

    def cursor(self) -> Any:
        """Refused: there is `channel`."""
        raise NotSupportedError("a broker has no cursors: use the attribute channel")

    def close(self) -> None:
        """Disconnect. A transaction that is not prepared is rolled back."""
        self._resource.close()

    def _required(self) -> Xid:
        if self._xid is None:
            raise ProgrammingError("there is no transaction: tpc_begin comes first")
        return self._xid

    def _other(self, xid: Xid) -> Xid:
        if self._xid is not None:
            raise ProgrammingError(f"transaction {self._xid} is not over: another one cannot be completed here")
        return xid

    def _only_tpc(self, name: str) -> Error:
        if self._xid is not None:
            return ProgrammingError(f"transaction {self._xid} ends with tpc_{name}")
        return NotSupportedError(f"there is no {name} without tpc_begin")


def _branch(xid: tuple[int, str, str]) -> Branch:
    """The branch of a name. Two names are never one branch: a character that has no octet is refused."""
    for what, text, least in (("gtrid", xid[1], 1), ("bqual", xid[2], 0)):
        if not least <= len(text) <= MAX_ID_OCTETS or any(ord(character) > 255 for character in text):
            raise InterfaceError(f"{what} {text!r} has not {least} to {MAX_ID_OCTETS} characters of ISO 8859-1")
    return Branch(xid[0], xid[1].encode("latin-1"), xid[2].encode("latin-1"))


def _check(answer: Answer) -> None:
    code = answer.code
    if code is XaCode.OK:
        return
    kind: type[Error] = OperationalError
    if code.rolled_back:
        kind = IntegrityError
    elif code.heuristic:
        kind = DataError
    elif code in (XaCode.NOTA, XaCode.PROTO, XaCode.DUPID, XaCode.INVAL):
        kind = ProgrammingError
    raise kind(str(answer))
