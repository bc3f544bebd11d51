"""Transactions of a primary: from the first publish to the decision, and who orders commits."""
