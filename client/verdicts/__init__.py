"""Verdicts: what clients wrote down, held against what brokers hold. Pure functions, one file a rule.

The demo, the simulator, the stress tests and the tests of the pipeline judge by these rules, and by no others. A verdict takes a
:class:`Case` and returns a list of :class:`Violation`; an empty list says that the rule holds. The head of each file states its
rule. docs/verdicts.md lists the rules, and the fields of a client's log. The first four files are in the room ``evidence``.

===============  ======================================================================================================
``client_log``   what a client writes down: a JSON object a line, with a version; writing and reading it
``history``      all clients' logs, put together: transactions, plain messages, deliveries
``content``      what brokers hold: read by a client, stated as digests, or told by the log (a feed, a journal)
``case``         a history and a content, and the tables that several verdicts read
``violation``    what a verdict returns
``told``         outcomes: none, two, or another one than the log's
``lost``         messages that must be there and are not
``doubled``      messages that are there twice, or were consumed twice
``partial``      transactions of which a part was done, or which ended otherwise than their client was told
``uncommitted``  messages that were seen though their transaction did not commit
``altered``      messages that no client made, that lie elsewhere, or whose amounts do not add up
``disorder``     messages out of order, and redelivered=0 said twice
``early``        delayed messages that were delivered before they were due
``differing``    brokers that hold different things
``judging``      which verdicts need which evidence; all of them at once
===============  ======================================================================================================

Nothing here knows a broker, a client library, a clock or a socket. ``client_log`` alone touches files.
"""

from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.client_log import ClientLog, Entry, Event, LogError, Message, read_logs
from understudy.client.verdicts.evidence.content import BrokerContent, Departure, LogContent, QueueContent
from understudy.client.verdicts.evidence.history import COMMITTED, ROLLED_BACK, History, Receipt, Sent, Transaction
from understudy.client.verdicts.judging import LOG_VERDICTS, QUEUE_VERDICTS, judge
from understudy.client.verdicts.violation import Kind, Violation

__all__ = [
    "COMMITTED",
    "LOG_VERDICTS",
    "QUEUE_VERDICTS",
    "ROLLED_BACK",
    "BrokerContent",
    "Case",
    "ClientLog",
    "Departure",
    "Entry",
    "Event",
    "History",
    "Kind",
    "LogContent",
    "LogError",
    "Message",
    "QueueContent",
    "Receipt",
    "Sent",
    "Transaction",
    "Violation",
    "judge",
    "read_logs",
]
