"""FlowPath: the stages that one passage through a flow has passed, read from the inbox.

An inbox keeps (stage, message id) of each message that a stage with ``once=True`` has processed, in the transaction of its work.
The id of a sent message follows from that of the message before it, the stage, and a number. So the messages of a passage are
found in the inbox from its first one on, for as long as the inbox keeps them; nothing is recorded for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from understudy.client.stages.core.sends import derived_id

if TYPE_CHECKING:
    from understudy.client.stages.definitions.stage import Stage

MOST_SENDS: Final = 32
"""Of one run of a stage: a message behind so many others is not found."""
AT_ONCE: Final = 400
"""Ids in one query."""

Read = Callable[[list[str]], list[tuple[str, str, int]]]
"""Rows (stage, message id, ms since 1970) of the inbox for some message ids."""


@attrs.frozen
class Passed:
    """A message that a stage has processed."""

    stage: str
    message_id: str
    at_ms: int


def path_of(flow_id: str, stages: Mapping[str, Stage[..., Any]], read: Read) -> list[Passed]:
    """The messages of a passage that were processed, by time.

    Args:
        flow_id: the id of the passage, which is that of its first message.
        stages: of the application, by name.
        read: asks the inbox.
    """
    found: dict[tuple[str, str], Passed] = {}
    asked: set[str] = set()
    open_: list[str] = [flow_id]
    while open_:
        ids = [each for each in dict.fromkeys(open_) if each not in asked]
        asked.update(ids)
        open_ = []
        for first in range(0, len(ids), AT_ONCE):
            for stage, message_id, at_ms in read(ids[first : first + AT_ONCE]):
                if (stage, message_id) not in found and stage in stages:
                    found[stage, message_id] = Passed(stage, message_id, at_ms)
                    open_ += ids_after(stages[stage], message_id)
    return sorted(found.values(), key=lambda each: each.at_ms)


def ids_after(stage: Stage[..., Any], message_id: str) -> Iterator[str]:
    """The ids of what a stage may have sent when it processed a message; also of what it ran in its own transaction."""
    for number in range(MOST_SENDS):
        yield derived_id(message_id, stage.name, number)
    yield derived_id(message_id, f"unstash:{stage.name}", 0)
    yield derived_id(message_id, f"direct:{stage.name}", 0)
