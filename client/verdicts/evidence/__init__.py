"""The evidence of verdicts: what clients wrote down, and what brokers and their logs hold."""
