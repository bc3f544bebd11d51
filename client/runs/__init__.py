"""The common part of runs of clients and brokers, `understudy demo`, `understudy stress` and the demos and stress of stages.

::

    broker_group          `understudy cluster` as a child: what it prints, who leads, SIGKILL
    signalled             runs a coroutine until a signal comes
    session               aio-pika's connection of one client over all addresses; losses and refusals, of every library
    transactions          the transactions of one client, in its log, each with its outcome
    coins                 how much clients move at a time
    tally                 what the clients' logs say so far
    view                  lines with the time, or a picture that is drawn over itself
    digests               what the brokers state of their queues
    figures               latencies of commits
    audited               the audit of a run by its brokers' feeds

What clients write down, and what is concluded from it, is in the room ``client/verdicts``.
"""
