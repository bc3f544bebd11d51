"""``understudy stress``: faults on a group of brokers under load, judged by the clients' own logs.

Who is who, in the order of one run::

    command               the typer function: options in, exit code out
    run                   runs it all: brokers up, queues filled, load and faults, queues read, report
    place, local_place    where the brokers live and what can be done to them: processes of this host
    watch                 every broker's role and status over time
    nemeses, conductor    the kinds of fault; which comes when, and that all is well again after it
    connection            what a client asks of its library, and how it finds the primary
    pika_connection       a library each
    worker, workloads     a client that survives failovers, and what clients do (bank)
    evidence              the queues at the end, and the judgement (client/verdicts, delivery_order)
    figures, report       pure: failover times and latencies; all of it as a mapping and as text
    view                  what one sees meanwhile
"""

from understudy.client.stress.command import stress

__all__ = ["stress"]
