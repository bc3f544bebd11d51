"""The messages of a decision log, engine `queue`, and which of them count.

The log of one shard is one durable queue. A message holds one group: a sequence of frames as in a status file (`journal_log`). The
queue is atomic and keeps its order, so nothing is ever torn: a message that is not whole is damage, or not ours.

The last message that starts with an image is the base; what stands before it is superseded. Behind the base the sequence numbers
rise by one. A message of another type, the *mark*, says nothing: its writer looks for it to know that it has read everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from understudy.xa.core.errors import NewerStatusError, StatusFileError
from understudy.xa.core.register.entry import STATUS_FORMAT, Entry, Image, Owned, apply
from understudy.xa.core.status.journal_log import Frame, frame, read_frame

GROUP: Final = "understudy-state-group"
MARK: Final = "understudy-state-mark"
"""Types of message, as in the AMQP property `type`."""


class LogMessage(msgspec.Struct, frozen=True):
    """One message of the queue.

    Attributes:
        kind: `GROUP`, `MARK`, or what a stranger wrote.
    """

    kind: str
    body: bytes


@attrs.frozen
class ReadLog:
    """The content of a decision log.

    Attributes:
        entries: all that are not over.
        sequence: of the last frame; 0 if there is none.
        base: sequence number of the image; 0 if the log is empty.
        owner: who wrote the image.
        last: the octets of the last group.
    """

    entries: dict[str, Entry]
    sequence: int = 0
    base: int = 0
    owner: str = ""
    last: bytes = b""


def base_frame(sequence: int, shard: int, owner: str, entries: Sequence[Entry]) -> bytes:
    """The group that a log starts with, from here on."""
    return frame(sequence, sequence - 1, [Image(STATUS_FORMAT, shard, list(entries)), Owned(owner)])


def read_log(messages: Sequence[LogMessage], name: str, shard: int) -> ReadLog:
    """The content of a queue's messages.

    Args:
        messages: all of them, oldest first, without marks.
        name: of the queue, for errors.
        shard: whose log it must be.

    Raises:
        StatusFileError: a message is damaged, of a newer format, of another program or of another shard, or one is missing.
    """
    groups = [_group(message, f"{name}, message {number}") for number, message in enumerate(messages, 1)]
    bases = [number for number, frames in enumerate(groups) if _image(frames) is not None]
    if not groups:
        return ReadLog({})
    if not bases:
        raise StatusFileError(f"{name}: none of its {len(groups)} messages holds an image: the beginning is missing")
    base = groups[bases[-1]][0]
    _check_image(base, name, shard)
    entries: dict[str, Entry] = {}
    last = base.sequence - 1
    for number, frames in enumerate(groups[bases[-1] :], bases[-1] + 1):
        for found in frames:
            if found.sequence != last + 1:
                raise StatusFileError(
                    f"{name}, message {number}: frame {found.sequence} follows frame {last}: "
                    f"{'one is missing' if found.sequence > last else 'it is there twice'}"
                )
            _apply_all(entries, found, f"{name}, message {number}")
            last = found.sequence
    return ReadLog(entries, last, base.sequence, _owner(base), messages[-1].body)


def _apply_all(entries: dict[str, Entry], found: Frame, place: str) -> None:
    for record in found.records:
        try:
            apply(entries, record)
        except KeyError as error:
            raise StatusFileError(
                f"{place}: frame {found.sequence} speaks of transaction {error}, which is not there"
            ) from error


def _group(message: LogMessage, place: str) -> list[Frame]:
    if message.kind != GROUP:
        raise StatusFileError(f"{place} is of type {message.kind!r}, and not {GROUP!r}: another program wrote it")
    frames: list[Frame] = []
    at = 0
    while at < len(message.body) or not frames:
        found = read_frame(message.body, at, place)
        if found is None:
            raise StatusFileError(f"{place} is damaged at octet {at} of {len(message.body)}")
        frames.append(found)
        at = found.end
    return frames


def _image(frames: Sequence[Frame]) -> Image | None:
    records = frames[0].records
    return records[0] if records and isinstance(records[0], Image) else None


def _owner(base: Frame) -> str:
    return next((record.owner for record in base.records if isinstance(record, Owned)), "")


def _check_image(base: Frame, name: str, shard: int) -> None:
    image = _image([base])
    assert image is not None, name
    if image.format != STATUS_FORMAT:
        raise NewerStatusError(f"{name} is of format {image.format}, and this server reads format {STATUS_FORMAT}")
    if image.shard != shard:
        raise StatusFileError(f"{name} holds the log of shard {image.shard}, and is read as that of shard {shard}")
