"""One delivery at a time, step by step; and what takes messages out of the outbox before and after a crash."""
