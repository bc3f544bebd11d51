"""``scripts/demo stages``: orders pass three stages over SQLite while workers and the primary broker are killed.

Each order is reserved, charged and shipped: three stages, each with a change of the database. The tables of the effects have no
unique keys: a stage that is done twice shows. In the end each order must have one row in each table, or be a dead letter with
none; money and stock must add up, and neither outbox nor queues may hold anything.

    command     options in, exit code out
    shop        the application that the workers run; `shop_xa` is the same with ``xa=True``
    worker      a worker that ends itself with SIGKILL at named points
    settings    environment variables that tell a worker where it is
    run         brokers, workers, orders, kills
    books       what the database holds, and what is wrong with it
"""

from understudy.client.stages.demo.command import demo

__all__ = ["demo"]
