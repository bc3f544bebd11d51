"""Large tables out of a feed, which the rules of `invariants` read: transactions, messages, statements and the others."""
