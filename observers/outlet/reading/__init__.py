"""The journal of one broker as units: committed transactions, and messages outside of transactions."""
