"""Owned: the owners of a leading broker's state, as ``life/building.py`` hands them to `Broker`."""

from __future__ import annotations

import attrs

from understudy.broker.core.clients.reception import Reception
from understudy.broker.core.clients.unstable_bytes import UnstableBytes
from understudy.broker.core.turn.clock import Clock
from understudy.broker.core.turn.completions import Completions
from understudy.broker.core.turn.counters import Counters
from understudy.broker.core.turn.name_bars import NameBars
from understudy.broker.core.turn.open_batch import OpenBatch
from understudy.broker.core.turn.queue_declarations import QueueDeclarations
from understudy.broker.core.turn.role import Role
from understudy.broker.core.turn.work_refusals import WorkRefusals
from understudy.broker.core.watching.hooks import Hooks


@attrs.frozen(kw_only=True)
class Owned:
    """One of each; see ``Broker`` for what they are."""

    clock: Clock
    role: Role
    work: WorkRefusals
    counters: Counters
    reception: Reception
    unstable: UnstableBytes
    hooks: Hooks
    completions: Completions
    batch: OpenBatch
    name_bars: NameBars
    declarations: QueueDeclarations
