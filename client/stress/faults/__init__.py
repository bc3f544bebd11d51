"""Faults: their kinds, when they strike and are healed, and what brokers say of themselves meanwhile."""
