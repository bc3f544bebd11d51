"""The bench: Understudy's cluster and RabbitMQ's mirrored nodes under the same generator.

``scripts/bench`` runs this package.  A *side* (``sides.py``, ``rabbitmq.py``, ``understudy.py``) starts and stops one
cluster; a *row* (``rows.py``) is one kind of load; ``txgen.py`` and ``perftest.py`` put a row's load on a side and
return a ``Sample``; ``runner.py`` alternates sides and rounds; ``report.py`` takes medians and prints them.

The benches in ``xa/`` and ``stages/`` share ``in_place.py``, the frame of their command lines; ``carry.py`` stands alone.

What is measured and why is in ``docs/performance.md``.
"""
