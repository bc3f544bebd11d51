"""Topic patterns: what they match, and what a wicked one costs."""

from __future__ import annotations

from understudy.broker.core.topic_trie import TopicTrie


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
