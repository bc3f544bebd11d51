"""The feed as a table: where it comes from, its columns, its digests, and whether it is one feed at all."""
