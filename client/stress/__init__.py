"""``understudy stress``: faults on a group of brokers under load, judged by the clients' own logs.

Who is who, in the order of one run::

    command, wishes       the typer function: options in, exit code out; the options, checked
    run                   runs it all: brokers up, queues filled, load and faults, queues read, report
    place                 where the brokers live and what can be done to them
    local_place           processes of this host, with processes, local_store and link_proxy
    compose_place         containers of docker-compose.yml
    watch                 every broker's role and status over time
    nemeses, conductor    the kinds of fault; which comes when, and that all is well again after it
    connection            what a client asks of its library, and how it finds the primary
    libraries             pika_connection, aio_pika_connection, kombu_connection
    worker, workloads     a client that survives failovers; bank, fifo, large_tx, branches, dead_letters
    dead_letter_kinds     the queues of dead_letters; placing: their judgement
    evidence              the queues at the end, and the judgement (client/verdicts, delivery_order)
    figures, report       pure: failover times and latencies; all of it as a mapping and as text
    page, page_text       pure: the report as one HTML page with plots
    view                  what one sees meanwhile

docs/stress.md is for those who run it. What clients write down, and what is concluded from it, is in ``client/verdicts``.
"""

from understudy.client.stress.command import stress

__all__ = ["stress"]
