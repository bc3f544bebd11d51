"""Topic patterns as a trie of words, so that a routing key is matched without looking at every binding."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


def _split(text: str) -> list[str]:
    """The words of a pattern or a key. An empty text has none, as in RabbitMQ; between two dots is an empty word."""
    return text.split(".") if text else []


def _words(pattern: str) -> list[str]:
    """A row of ``#`` says no more than one, and would cost a step for each word of each key."""
    words = _split(pattern)
    return [word for at, word in enumerate(words) if word != "#" or not at or words[at - 1] != "#"]


class _Node(Generic[T]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[T, None] = {}


class TopicTrie(Generic[T]):
    """Maps patterns to values, each once a pattern. ``*`` stands for one word, ``#`` for zero or more; words are parted by dots."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        node = self._root
        for word in _words(pattern):
            node = node.children.setdefault(word, _Node())
        node.values[value] = None

    def remove(self, pattern: str, value: T) -> None:
        """Remove a value added under ``pattern``.

        Raises:
            KeyError: it is not there.
        """
        path = [self._root]
        words = _words(pattern)
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].values[value]
        for word, node, parent in zip(reversed(words), reversed(path), reversed(path[:-1]), strict=False):
            if node.values or node.children:
                break
            del parent.children[word]

    def match(self, routing_key: str) -> list[T]:
        """All values whose pattern matches, each once a pattern."""
        words = _split(routing_key)
        found: list[T] = []
        seen: set[tuple[int, int]] = set()
        # A node together with how many words are consumed; "#" makes the same pair reachable in several ways.
        todo: list[tuple[_Node[T], int]] = [(self._root, 0)]
        while todo:
            node, at = todo.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            if at == len(words):
                found.extend(node.values)
            else:
                for word in (words[at], "*"):
                    child = node.children.get(word)
                    if child is not None:
                        todo.append((child, at + 1))
            many = node.children.get("#")
            if many is not None:
                todo.extend((many, i) for i in range(at, len(words) + 1))
        return found
