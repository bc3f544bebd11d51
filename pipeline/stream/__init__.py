"""``understudy stream``: what an event feed says, while it happens, as tables that other programs read, and as alerts.

Three queries of structured streaming read the feed; each has a checkpoint of its own.

    windows        throughput per broker and lag per backup, per window of event time
    latency        commit latency per window of event time
    watch          readiness and blockers, open and in-doubt transactions, alerts: per batch

and beside them

    wishes         what the user asked for
    open_set       the transactions that are open: kept from batch to batch
    alerts         what an operator should know
    sinks          Parquet, Delta or the console: a batch that is written again replaces itself
    checkpoint     refuses a checkpoint, or an output, of another query
    running        starts the queries, tells their progress, ends them

Exactly once: Spark's checkpoint fixes which events a batch has before the batch runs. All that is computed from a batch depends on
these events and on the state before it, and is written under the number of the batch. So a batch that was killed runs again
and writes the same again, in the same place.
"""
