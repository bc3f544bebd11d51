"""Transactions of a broker that leads: from the first publish to the decision, and who orders commits."""
