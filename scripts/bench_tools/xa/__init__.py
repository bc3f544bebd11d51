"""``scripts/bench xa``: what distributed transactions cost, and how their number counts.

throughput  two resource managers beside each of them alone, and the state server's group sync
branches    thousands of prepared branches: list, restart, failover, recovery
place       PostgreSQL, a broker and state servers as processes
cli         the command line
settings    names that both sides of a pipe know
"""
