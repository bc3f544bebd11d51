"""ScriptedResource: answers to each verb as a script says. For tests of programs and of the transaction manager itself.

A script is words ``verb=CODE``, such as ``prepare=RBDEADLOCK commit=HEURMIX``. Each word is the answer to one call of its verb, in
turn; ``verb=CODE*`` is the answer to all further calls. Without a word the answer is OK. A branch has a proof if the script has
an answer to ``outcome``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

from understudy.xa.core.codes import OK, Answer, XaCode
from understudy.xa.core.errors import ConfigError
from understudy.xa.core.manager.steps import Flag, Verb, VerbName
from understudy.xa.core.xid import Xid
from understudy.xa.resource_managers.port import InDoubt, ResourceManager


class ScriptedResource(ResourceManager):
    """A resource manager without resources.

    Attributes:
        calls: the verbs in the order of their calls.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.identity = options.get("identity", "")
        self.calls: list[Verb] = []
        self._once: defaultdict[VerbName, deque[XaCode]] = defaultdict(deque)
        self._always: dict[VerbName, XaCode] = {}
        for word in options["script"].split():
            verb, _, code = word.partition("=")
            try:
                if code.endswith("*"):
                    self._always[VerbName(verb)] = XaCode[code[:-1]]
                else:
                    self._once[VerbName(verb)].append(XaCode[code])
            except (ValueError, KeyError) as error:
                raise ConfigError(f"resource manager {name}: {word!r} in its script is not verb=CODE") from error

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def resource(self) -> ScriptedResource:
        return self

    def call(self, verb: Verb) -> Answer:
        self.calls.append(verb)
        return super().call(verb)

    def start(self, xid: Xid, flags: Flag) -> Answer:
        return self._next(VerbName.START)

    def end(self, xid: Xid, flags: Flag) -> Answer:
        return self._next(VerbName.END)

    def prepare(self, xid: Xid) -> Answer:
        answer = self._next(VerbName.PREPARE)
        tells = VerbName.OUTCOME in self._once or VerbName.OUTCOME in self._always
        return answer._replace(proof="script") if tells else answer

    def commit(self, xid: Xid, *, one_phase: bool) -> Answer:
        return self._next(VerbName.COMMIT)

    def rollback(self, xid: Xid) -> Answer:
        return self._next(VerbName.ROLLBACK)

    def forget(self, xid: Xid) -> Answer:
        return self._next(VerbName.FORGET)

    def outcome(self, xid: Xid, proof: str) -> Answer:
        return self._next(VerbName.OUTCOME)

    def recover(self) -> list[InDoubt]:
        return []

    def _next(self, verb: VerbName) -> Answer:
        once = self._once[verb]
        code = once.popleft() if once else self._always.get(verb, XaCode.OK)
        return OK if code is XaCode.OK else Answer(code, "as the script says")
