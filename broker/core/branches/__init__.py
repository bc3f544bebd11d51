"""Branches of distributed transactions: what the leading broker knows of them, and what any broker shows."""
