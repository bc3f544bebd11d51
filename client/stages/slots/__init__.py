"""One delivery at a time, step by step; what takes messages out of the outbox, and old rows out of the inbox."""
