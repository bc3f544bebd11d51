"""TxView: what a coordinator and the participants are shown of a transaction."""

from __future__ import annotations

from typing import Any

import attrs

from understudy.broker.amqp.properties import header
from understudy.broker.plugin_api import views
from understudy.broker.plugin_api.views import QueueName


@attrs.frozen(kw_only=True, eq=False)
class TxView(views.TxView):
    """A transaction, or a branch of a distributed one, whose client asks for its commit. Frozen; ``state`` is ``prepared``.

    One transaction has one view for its whole life in a core. Views are equal if they are the same object, so one may be the
    key of a dict. Queues that are deleted by then are not in it.

    Attributes:
        refusable: the coordinator may still refuse it; False of a branch that its transaction manager has had prepared.
        requested_ms: `CoordinatorHost.now_ms` when it was asked for.
    """

    refusable: bool = True
    requested_ms: int = 0
    _properties: tuple[bytes, ...] = attrs.field(default=(), repr=False)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def queues(self) -> tuple[QueueName, ...]:
        """The queues that it changes, in the order of vhost and name."""
        return tuple(sorted(self.enqueued.keys() | self.dequeued.keys()))

    def header(self, name: str) -> Any:
        """The header ``name`` of the first message that the transaction brings with such a header; None if none has it.

        Takes time in proportion to the messages. What types a value may have: ``amqp/field_table.py``.
        """
        return next((found for raw in self._properties if (found := header(raw, name)) is not None), None)
