"""The story of a broken promise, readable: every step with the names of the brokers, then what each of them holds."""

from __future__ import annotations

from collections.abc import Sequence

from tests.model.catch_up_steps import names
from tests.model.moves import After, Moves
from tests.model.records import B, C, Log, text_of
from tests.model.state import LACKS_PREPARED, PREPARED_TOLD, SAYS_COMMIT, SAYS_ROLLBACK, Broker, World

MANAGER = {PREPARED_TOLD: "told prepare-ok", SAYS_COMMIT: "has said commit", SAYS_ROLLBACK: "has said rollback"}


def story_of(moves: Moves, path: Sequence[int], promise: str) -> tuple[tuple[str, ...], str]:
    """Walk ``path`` (packed states) again with brokers that keep their names.

    Returns:
        The lines of the story, and ``promise`` with the name of the broker that breaks it.
    """
    world, parts = moves.first()
    lines = []
    for number, packed in enumerate(path[1:], 1):
        after = _step_to(moves, world, parts, packed, promise if number == len(path) - 1 else "")
        lines.append(f"{number:3} {_named(after)}")
        world, parts = after.world, after.parts
    lines += ["", *describe(moves.worlds[world], [moves.brokers[part] for part in parts])]
    guilty = next((k for k, part in enumerate(parts) if moves.check(world, [part])), -1)
    return tuple(lines), promise.replace("{b}", name_of(guilty) if guilty >= 0 else "a broker")


def _step_to(moves: Moves, world: int, parts: list[int], packed: int, promise: str) -> After:
    """The step that leads to ``packed``; if there are several, the one that breaks ``promise``."""
    found = [after for after in moves.after(world, parts) if moves.pack(after.world, after.parts) == packed]
    assert found, "a path of states has a step that the rules do not have"
    return next((after for after in found if promise and after.broken == promise), found[0])


def name_of(index: int) -> str:
    return f"b{index + 1}"


def _named(after: After) -> str:
    if after.j < 0:
        return after.move.text.replace("{b}", name_of(after.i))
    return after.move.text.replace("{p}", name_of(after.i)).replace("{b}", name_of(after.j))


def describe(world: World, brokers: Sequence[Broker]) -> list[str]:
    """A state in words."""
    listed = ", ".join(name_of(k) for k, broker in enumerate(brokers) if broker.listed)
    named = next((name_of(k) for k, broker in enumerate(brokers) if broker.named), "nobody")
    lines = [
        f"store: epoch {world.epoch}, primary {named}, in-sync set {{{listed}}}",
        f"stable somewhere, at some time: {_log(world.chosen)}",
    ]
    manager = ", ".join(text for fact, text in MANAGER.items() if world.facts & fact)
    lines += [f"the manager: {manager}"] * bool(manager)
    return lines + [f"{name_of(k)}: {describe_broker(broker)}" for k, broker in enumerate(brokers)]


def describe_broker(broker: Broker) -> str:
    """Text on one broker: its role and what it holds."""
    role = broker.role
    words = [] if broker.up else ["down"]
    if role is not None:
        words.append(f"{'active' if role.active else 'recovering'} primary of epoch {role.epoch}, stable {role.stable}")
    elif broker.link:
        words.append(f"follows epoch {broker.link}")
    if broker.no:
        words.append(f"has noted NO to {broker.no}")
    if broker.lacks & (B | C):
        words.append(f"lacks {names(broker.lacks & (B | C))} of the transaction")
    if broker.lacks & LACKS_PREPARED:
        words.append("lacks DTX_PREPARE")
    if broker.part:
        words.append("in the middle of a catch-up")
    if broker.filling is not None:
        words.append(f"holds {names(broker.filling.content)}, told {broker.filling.told}")
    words += [f"epoch seen {broker.seen}", f"fsynced {_log(broker.log[: broker.synced])}"]
    if broker.synced < len(broker.log):
        words.append(f"and not yet {_log(broker.log[broker.synced :])}")
    return ", ".join(words)


def _log(log: Log) -> str:
    return "[" + " ".join(text_of(raw) for raw in log) + "]"
