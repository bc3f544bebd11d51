"""Checkpoint: binds a directory of checkpoints, and an output, to one stream.

Spark goes on with whatever it finds in a checkpoint. With another feed or another window it would join what does not belong
together; and a new checkpoint beside an old output would number its batches anew, and replace the batches that are there.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from understudy.pipeline.spark.errors import PipelineError
from understudy.pipeline.stream.wishes import StreamWishes

NAME: Final = "understudy-stream.json"
OUT_NAME: Final = ".understudy-stream.json"
VERSION: Final = 1


class CheckpointError(PipelineError):
    """The checkpoint or the output is of another stream, or cannot be used."""


@attrs.frozen(kw_only=True)
class Checkpoint:
    """A directory that belongs to one stream.

    Attributes:
        stream: its id, for ever.
        resumed: the stream has run before.
    """

    directory: Path
    stream: str
    resumed: bool

    def of_query(self, name: str) -> str:
        """Where Spark keeps the checkpoint of one query."""
        return str(self.directory / "queries" / name)

    def note_tables(self, out: Path) -> None:
        """Keep the names of the tables in ``out``: a later start refuses to go on without one of them."""
        path = self.directory / NAME
        _write(path, _read(path) | {"tables": _tables(out)})

    def of_state(self, name: str) -> Path:
        """Where a query keeps its own state."""
        return self.directory / "state" / name


def open_checkpoint(wishes: StreamWishes) -> Checkpoint:
    """Take the directory for the stream, or go on with it.

    Raises:
        CheckpointError: it belongs to another stream, or to no stream, or cannot be written; or the output does.
    """
    path = wishes.checkpoint / NAME
    try:
        wishes.checkpoint.mkdir(parents=True, exist_ok=True)
        if path.exists():
            kept = _read(path)
            _compare(path, kept.get("wishes", {}), wishes.identity())
            stream, resumed = str(kept["stream"]), True
        else:
            if any(each.name != f"{NAME}.new" for each in wishes.checkpoint.iterdir()):
                raise CheckpointError(
                    f"{wishes.checkpoint} is not empty and has no {NAME}: it is no checkpoint of understudy stream"
                )
            if wishes.out is not None:
                _refuse_used(wishes.out)
            stream, resumed = uuid.uuid4().hex, False
            _write(path, {"version": VERSION, "stream": stream, "wishes": wishes.identity()})
        if wishes.out is not None:
            if resumed:
                _refuse_without_tables(wishes, path)
            _take_output(wishes.out, stream)
    except OSError as error:
        raise CheckpointError(f"{error.filename or wishes.checkpoint}: {error.strerror}") from error
    return Checkpoint(directory=wishes.checkpoint, stream=stream, resumed=resumed)


def _refuse_used(out: Path) -> None:
    """A new stream needs a directory that is empty, or not there yet."""
    if (out / OUT_NAME).exists():
        raise CheckpointError(
            f"{out} has the output of the stream {_read(out / OUT_NAME)['stream']}, and the checkpoint is new: its batches would"
            " replace those that are there. Give another --out, or the checkpoint of that stream."
        )
    if out.exists() and any(each.name[0] not in "._" for each in out.iterdir()):
        raise CheckpointError(f"{out} is not empty, and no output of understudy stream")


def _refuse_without_tables(wishes: StreamWishes, path: Path) -> None:
    """A stream that has finished a batch goes on beside the tables that it has written, or not at all."""
    out = wishes.out
    assert out is not None
    missing = sorted({*_read(path).get("tables", ())} - {*_tables(out)})
    done = any(each.name.isdecimal() for each in (path.parent / "queries").glob("*/commits/*"))
    if missing or (done and not (out / OUT_NAME).exists()):
        what = f"lacks the tables {', '.join(missing)}" if missing else "is not the output of this stream"
        raise CheckpointError(
            f"{out} {what}, and the checkpoint {path.parent} is behind batches that were written: they would be missing. "
            "Put the tables back, or begin with a new --checkpoint and a new --out."
        )


def _tables(out: Path) -> list[str]:
    return (
        sorted(each.name for each in out.iterdir() if each.is_dir() and each.name[0] not in "._")
        if out.is_dir()
        else []
    )


def _take_output(out: Path, stream: str) -> None:
    """The output belongs to ``stream`` from now on. A stream that was killed before this step does it now."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / OUT_NAME
    if not path.exists():
        _write(path, {"version": VERSION, "stream": stream})
    elif (owner := _read(path)["stream"]) != stream:
        raise CheckpointError(f"{out} has the output of the stream {owner}, and the checkpoint is that of {stream}")


def _compare(path: Path, kept: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    others = [f"{name} {kept.get(name)!r}, not {value!r}" for name, value in now.items() if kept.get(name) != value]
    if others:
        raise CheckpointError(f"{path.parent} is the checkpoint of another query: it has {'; '.join(others)}")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict) or found.get("version") != VERSION or "stream" not in found:
        raise CheckpointError(f"{path} is of another version than {VERSION}, or no checkpoint")
    return found


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """In one step: a kill leaves the old file, or the new one."""
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
