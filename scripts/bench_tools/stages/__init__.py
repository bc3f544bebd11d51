"""``scripts/bench stages``: what stages cost beside a bare consumer that does the same work unsafely.

sides   the programs that are measured, each in a process of its own
place   PostgreSQL and a broker, and messages that wait
cells   rounds, figures, the table
cli     the command line
"""
