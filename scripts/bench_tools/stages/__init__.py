"""``scripts/bench stages``: what stages cost beside a bare consumer that does the same work unsafely.

sides   the programs that are measured, each in a process of its own
rivals  FastStream and Celery, in an environment of their own; rival_programs/
place   PostgreSQL and a broker, and messages that wait
soak    very many stages without a fault, and the memory of the worker
cells   rounds, figures, the table
cli     the command line
"""
