"""Codec: messages of msgspec, attrs, dataclasses, pydantic and plain types, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from understudy.client.stages.core.fault import Fault
from understudy.client.stages.errors import ConfigurationError, DemarcationError


class Codec:
    """Encodes and decodes one type of message.

    Args:
        kind: any type that msgspec knows (Struct, attrs, dataclass, TypedDict, plain types), or a pydantic model.
        where: the stage, for errors.

    Raises:
        ConfigurationError: the type cannot be a message.
    """

    def __init__(self, kind: Any, where: str) -> None:
        self.kind = kind
        self._where = where
        self._pydantic = hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json")
        if not self._pydantic:
            try:
                self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
                odd = _unknown(msgspec.inspect.type_info(kind), set())
            except TypeError as error:
                raise ConfigurationError(
                    f"{where}: messages of type {kind!r} cannot be read from JSON: {error}"
                ) from error
            if odd is not None:
                raise ConfigurationError(
                    f"{where}: messages of type {kind!r} cannot be read from JSON: {odd!r} is no type that JSON can hold"
                )

    def encode(self, message: object) -> bytes:
        """The message as JSON.

        Raises:
            DemarcationError: the message is of another type, or holds a value that JSON cannot.
        """
        if isinstance(self.kind, type) and not isinstance(message, self.kind):
            raise DemarcationError(
                f"{self._where} takes messages of type {self.kind.__name__}; this one is of type {type(message).__name__}"
            )
        if self._pydantic:
            return str(message.model_dump_json()).encode()  # type: ignore[attr-defined]  # a model, as __init__ found
        try:
            return msgspec.json.encode(message)
        except (TypeError, ValueError) as error:
            raise DemarcationError(
                f"{self._where}: this message of type {type(message).__name__} cannot be written as JSON: {error}"
            ) from error

    def decode(self, body: bytes) -> object:
        """The message in a body.

        Raises:
            ValueError: the body is no such message. An error of another type is its cause: a RecursionError of deep nesting, or
                what a validator or a ``__post_init__`` of the application raises.
        """
        try:
            if self._pydantic:
                return self.kind.model_validate_json(body)
            return self._decoder.decode(body)
        except ValueError:
            raise
        except Exception as error:
            fault = Fault.of(error)
            raise ValueError(f"{fault.kind}: {fault.text}") from error


def _unknown(node: Any, seen: set[int]) -> Any:
    """The first type in a message that JSON cannot hold; None if there is none."""
    if isinstance(node, msgspec.inspect.CustomType):
        return node.cls
    if id(node) in seen:
        return None
    seen.add(id(node))
    below = [getattr(node, name, None) for name in ("item_type", "key_type", "value_type", "type")]
    below += [*getattr(node, "types", ()), *getattr(node, "item_types", ()), *getattr(node, "fields", ())]
    for each in below:
        if (
            isinstance(each, (msgspec.inspect.Type, msgspec.inspect.Field))
            and (odd := _unknown(each, seen)) is not None
        ):
            return odd
    return None
