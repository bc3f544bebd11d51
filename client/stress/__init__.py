"""``understudy stress``: faults on a group of brokers under load, judged by the clients' own logs.

The order of one run::

    command, wishes       the typer function: options in, exit code out; the options, checked
    run                   runs it all: brokers up, queues filled, load and faults, queues read, report
    places                where the brokers live and what can be done to them: processes of this host, or containers
    faults                the kinds of fault; which comes when, and that all is well again after it; what brokers say meanwhile
    libraries             what a client asks of its library, and how it finds the primary: pika, aio-pika, kombu
    workloads             a client that survives failovers, and what it does: bank, fifo, large-tx, dtx, deadletters
    evidence              the queues at the end, and the judgement (client/verdicts)
    report                a live view; figures, a text and one HTML page

docs/stress.md is for those who run it. What clients write down, and what is concluded from it, is in ``client/verdicts``.
"""

from understudy.client.stress.command import stress

__all__ = ["stress"]
