"""BrokerResource: the queues of an Understudy broker, or of a group, by class 100 or by messages (docs/dtx.md).

A backup turns a client away when it connects, so each address is tried until one serves. A branch belongs to the broker and not
to the channel: what was prepared is completed on any connection. 404 for a branch that was prepared means that it is decided. How,
tells the outcome of its transaction, whose number comes with the answer to prepare.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from amqp.exceptions import AMQPError

from understudy.xa.core.codes import OK, Answer, XaCode
from understudy.xa.core.errors import ResourceManagerError
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.xid import Xid
from understudy.xa.resource_managers.dtx_wire import (
    CAPABILITY,
    TRANSACTION_CAPABILITY,
    DtxConnection,
    DtxWire,
    MessageWire,
    MethodWire,
)
from understudy.xa.resource_managers.port import InDoubt, ResourceManager
from understudy.xa.sockets.tls import tls_options

CONNECT_S: Final = 2.0
AGAIN_S: Final = 0.1
_STATUS: Final = (OK, Answer(XaCode.RBROLLBACK), Answer(XaCode.RBTIMEOUT), Answer(XaCode.HEURHAZ))
_BY_REPLY: Final[Mapping[int, XaCode]] = {
    403: XaCode.RMERR,
    404: XaCode.NOTA,
    409: XaCode.RETRY,
    503: XaCode.PROTO,
    506: XaCode.RMERR,
    530: XaCode.DUPID,
    542: XaCode.INVAL,
}
_STATES: Final = ("prepared", "heuristically committed", "heuristically rolled back")
_HEURISTICS: Final = (XaCode.HEURHAZ, XaCode.HEURCOM, XaCode.HEURRB)
_OUTCOMES: Final[Mapping[str, XaCode]] = {
    "committed": XaCode.HEURCOM,
    "rolled back": XaCode.HEURRB,
    "pending": XaCode.RETRY,
}
_LOSSES: Final = (AMQPError, OSError, AttributeError)  # AttributeError: py-amqp uses a transport that it has dropped


class BrokerResource(ResourceManager):
    """One connection with one channel.

    Args:
        options: of kind ``amqp``; see `core.profiles.profile`.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.timeout_s = options["timeout_s"]
        self._options = options
        self._connection: Any = None
        self._channel: Any = None
        self._wire: DtxWire | None = None
        self._prepared: tuple[Xid, str] | None = None
        self._seen: frozenset[Xid] = frozenset()

    # -- connection ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        if self._connection is not None and self._connection.connected:
            return
        self.close()
        with self.bounded() as deadline:
            self._open(deadline)

    def _open(self, deadline: float) -> None:
        while True:
            reasons = []
            for address in self._options["addresses"]:
                try:
                    self._connect(address)
                except ResourceManagerError:
                    self.close()
                    raise
                except _LOSSES as error:
                    self.close()
                    if _is_a_mistake(error):
                        raise
                    reasons.append(f"{address}: {error}")
                else:
                    return
            if time.monotonic() >= deadline:
                raise ResourceManagerError(f"resource manager {self.name}: no broker serves: {'; '.join(reasons)}")
            time.sleep(AGAIN_S)  # a backup may be about to lead

    def _connect(self, address: str) -> None:
        options = self._options
        self._connection = DtxConnection(
            address,
            options["user"],
            options["password"],
            virtual_host=options["vhost"],
            connect_timeout=min(CONNECT_S, self.left_s()),
            client_properties={"connection_name": f"understudy xa {self.name}"},
            ssl=_tls_of(options, address),
        )
        self._connection.connect()
        properties = self._connection.server_properties
        capabilities = properties.get("capabilities", {})
        if capabilities.get(CAPABILITY) is not True:
            raise ResourceManagerError(
                f"resource manager {self.name}: {address} does not announce {CAPABILITY}: it is no Understudy broker"
            )
        founding = properties.get("understudy_founding", "")
        self.check_identity(f"understudy {properties.get('cluster_name', '')}/{founding}" if founding else "")
        self._connection.tells_transactions(capabilities.get(TRANSACTION_CAPABILITY) is True)
        self._select()

    def _select(self) -> None:
        # py-amqp takes no time-out where it opens a channel or declares a queue.
        with self._socket_bounded():
            self._channel = self._connection.channel()
            form = MethodWire if self._options["form"] == "methods" else MessageWire
            self._wire = form(self._channel, self.left_s)
            self._wire.select()

    @contextlib.contextmanager
    def _socket_bounded(self) -> Iterator[None]:
        """Each octet that is sent or received inside takes no longer than the verb may still take."""
        sock = self._connection.transport.sock
        before = sock.gettimeout()
        sock.settimeout(self.left_s())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it is closed
                sock.settimeout(before)

    def close(self) -> None:
        connection, self._connection, self._channel, self._wire = self._connection, None, None, None
        if connection is not None:
            with contextlib.suppress(*_LOSSES):
                connection.collect()

    def after_fork(self) -> None:
        """py-amqp shuts a socket down when it closes one, which would end the connection of the parent."""
        connection = self._connection
        if connection is not None and connection.transport is not None:
            with contextlib.suppress(OSError), open(os.devnull, "r+b") as nowhere:  # noqa: PTH123  # a descriptor, and no path
                os.dup2(nowhere.fileno(), connection.transport.sock.fileno())
        self.close()

    @property
    def resource(self) -> Any:
        """An `amqp.Channel`: what is published and acknowledged on it belongs to the transaction."""
        assert self._channel is not None, self.name
        return self._channel

    def give_back(self) -> None:
        """A rollback undoes acknowledgements, and leaves the messages with the channel: they go back to their queues here."""
        if self._connection is None or not self._connection.connected:
            return
        try:
            with self._socket_bounded():
                self._channel.basic_recover(requeue=True)
        except _LOSSES as error:  # of a connection that is lost the broker takes them back
            self.close()
            if _is_a_mistake(error):
                raise

    # -- verbs --------------------------------------------------------------------------------------------------------

    def start(self, xid: Xid, flags: Flag) -> Answer:
        stale = self._connection is not None
        answer = self._status("start", xid, join=Flag.JOIN in flags, resume=Flag.RESUME in flags)
        if answer.code == XaCode.RMFAIL and stale and Flag.RESUME not in flags:  # the broker was restarted since
            answer = self._status("start", xid, join=Flag.JOIN in flags)
        return answer

    def end(self, xid: Xid, flags: Flag) -> Answer:
        if self._connection is None or not self._connection.connected:
            return Answer(XaCode.RBCOMMFAIL, "the connection was lost, and the branch with it")
        answer = self._status("end", xid, fail=Flag.FAIL in flags, suspend=Flag.SUSPEND in flags)
        # The broker has ended the branch with the channel that worked on it.
        return Answer(XaCode.RBCOMMFAIL, answer.text) if answer.code == XaCode.RMFAIL else answer

    def prepare(self, xid: Xid) -> Answer:
        proof = ""

        def prepared(wire: DtxWire) -> int:
            nonlocal proof
            status, proof = wire.prepare(xid)
            return status

        answer = self._answered(prepared)
        if answer.code != XaCode.OK:
            return answer
        self._prepared = xid, proof
        return answer._replace(proof=proof)

    def outcome(self, xid: Xid, proof: str) -> Answer:
        told = ""

        def asked(wire: DtxWire) -> int:
            nonlocal told
            told = wire.outcome(proof)
            return 0

        answer = self._answered(asked)
        if answer.code == XaCode.OK:
            return Answer(_OUTCOMES.get(told, XaCode.HEURHAZ), f"the broker calls its transaction {proof} {told}")
        return answer if answer.code.passing else Answer(XaCode.HEURHAZ, f"the broker does not tell: {answer}")

    def commit(self, xid: Xid, *, one_phase: bool) -> Answer:
        if one_phase:
            return self._status("commit", xid, one_phase=True)
        return self._finish("commit", xid)

    def rollback(self, xid: Xid) -> Answer:
        return self._finish("rollback", xid)

    def _finish(self, verb: str, xid: Xid) -> Answer:
        """The second phase, said a second time on a new connection if the answer is lost."""
        try:
            self.open()
        except ResourceManagerError as error:
            return Answer(XaCode.RMFAIL, str(error))
        answer = self._status(verb, xid)
        if answer.code == XaCode.RMFAIL:  # the broker may have carried it out: then the branch is gone
            answer = self._status(verb, xid)
            own, proof = self._prepared or (None, "")
            if answer.code == XaCode.NOTA and (
                xid == own or xid in self._seen
            ):  # else the branch may never have been here
                answer = self.outcome_of_lost(xid, proof if xid == own else "", commits=verb == "commit")
        return self._heuristic(xid) if answer.code == XaCode.HEURHAZ else answer

    def _heuristic(self, xid: Xid) -> Answer:
        """How an operator has completed the branch."""
        with contextlib.suppress(ResourceManagerError):
            for state, found in self._listed():
                if found == xid:
                    return Answer(_HEURISTICS[state], f"an operator completed it: {_STATES[state]}")
        return Answer(XaCode.HEURHAZ, "an operator completed it, and it is not known how")

    def forget(self, xid: Xid) -> Answer:
        return self._status("forget", xid)

    def recover(self) -> list[InDoubt]:
        found = [InDoubt(xid, _STATES[state]) for state, xid in self._listed()]
        self._seen = frozenset(one.xid for one in found)
        return found

    def _listed(self) -> list[tuple[int, Xid]]:
        with self.bounded():
            return self._all_listed()

    def _all_listed(self) -> list[tuple[int, Xid]]:
        self.open()
        assert self._wire is not None
        try:
            return self._wire.recover()
        except _LOSSES as error:
            self.close()
            raise ResourceManagerError(f"resource manager {self.name} does not list its branches: {error}") from error

    # -- errors -------------------------------------------------------------------------------------------------------

    def _status(self, verb: str, xid: Xid, **bits: bool) -> Answer:
        return self._answered(lambda wire: wire.status(verb, xid, **bits))

    def _answered(self, call: Callable[[DtxWire], int]) -> Answer:
        try:
            self.open()
        except ResourceManagerError as error:
            return Answer(XaCode.RMFAIL, str(error))
        assert self._wire is not None
        try:
            with self._socket_bounded():
                return _STATUS[call(self._wire)]
        except _LOSSES as error:
            code = error.reply_code if isinstance(error, AMQPError) else 0
            refused = code in _BY_REPLY and self._connection.connected
            # A refusal closes the channel; a new connection costs little and leaves nothing of the old channel behind.
            self.close()
            if _is_a_mistake(error):
                raise
            return Answer(_BY_REPLY[code] if refused else XaCode.RMFAIL, str(error))


def _tls_of(options: Mapping[str, Any], address: str) -> Any:
    if not options.get("tls"):
        return False
    return tls_options(address, ca=options["tls_ca"], cert=options["tls_cert"], key=options["tls_key"])


def _is_a_mistake(error: Exception) -> bool:
    """An AttributeError is a loss only if py-amqp uses the connection that it has dropped, which then is None."""
    return isinstance(error, AttributeError) and error.obj is not None
