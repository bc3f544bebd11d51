"""Dead letters: ``understudy dlq list|show|reissue|edit|purge|records|lines``.

A stage's dead letters are in the queue ``NAME.dead``. The commands hold its messages while they look, and give back what
they leave. What changes is one transaction of the broker for each batch: messages leave, enter, and a record says so.

    place      the queues and the brokers that a command is about
    queue      one dead-letter queue, held by this process
    work       reissue, purge, edit: batches at a bounded rate
    report     what the commands print
    commands   the commands themselves; options: what they share
    running    connect, tell how far it is, end with a code
    lines_command  keys with a failed message, of stages with ``key=``

What is decided without I/O, is in ``core/letter.py``.
"""
