"""``understudy demo``: money moves between account queues while the primary is killed again and again; then everything is counted.

Three brokers run as processes on this host. Clients that know nothing but AMQP move coins between queues, in transactions of
several publishes and acknowledgements, and each writes down what it did and what it was told. At the end every queue is read, and
the queues must hold what the clients' logs say, to the coin: that is the proof, and it needs no word of the brokers.

Who is who, in the order of one run::

    command           the typer function: options in, exit code out
    demonstration     runs it all: brokers up, accounts filled, load and kills, queues read, report
    mover             one client, and its transactions
    killer            when the primary dies
    view              what one sees meanwhile
    read_back         the queues as a client finds them, and the digests that the brokers state over HTTP
    figures, report   pure: failover times; all of it as a mapping and as text

The group of brokers, the connections of clients and what else other runs have, too, are in ``client/runs``. What clients write
down, and what is concluded from it, is in the room ``client/verdicts``. aio-pika (extra ``demo``) is imported only when the command
runs.
"""

from understudy.client.demo.command import demo

__all__ = ["demo"]
