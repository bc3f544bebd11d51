"""Topic patterns: what they match, and what a wicked one costs."""

from __future__ import annotations

import pytest

from understudy.broker.core.topology.topic_trie import TopicTrie


@pytest.mark.parametrize(
    ("key", "matching"),
    [
        ("", ["", "#"]),
        (".", ["*.#", "#", "*.*", ".", "#.*"]),
        ("a", ["*", "*.#", "#", "#.*"]),
        ("a.", ["*.#", "#", "*.*", "#.*"]),
        ("a.b", ["*.#", "#", "*.*", "#.*"]),
    ],
)
def test_an_empty_key_or_pattern_has_no_words(key: str, matching: list[str]) -> None:
    """RabbitMQ: an empty text has no words; a dot stands between two words, which may be empty."""
    trie: TopicTrie[str] = TopicTrie()
    patterns = ["", "*", "*.#", "#", "*.*", ".", "#.*"]
    for pattern in patterns:
        trie.add(pattern, pattern)
    assert sorted(trie.match(key)) == sorted(matching)
    for pattern in patterns:
        trie.remove(pattern, pattern)
    assert trie.match(key) == []


def test_a_row_of_hashes_is_one_hash() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add("a.#.#.#.b", "x")
    assert trie.match("a.b") == ["x"]
    assert trie.match("a.1.2.b") == ["x"]
    assert trie.match("a.1.2.c") == []
    trie.remove("a.#.#.#.b", "x")
    assert trie.match("a.b") == []


def test_hashes_in_a_row_take_no_step_for_each_word_of_a_key() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add(".".join("#" * 128), "x")
    node, depth = trie._root, 0
    while node.children:
        (node,) = node.children.values()
        depth += 1
    assert depth == 1
    assert trie.match("." * 255) == ["x"]
