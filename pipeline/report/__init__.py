"""``understudy report``: an event feed as one HTML page that operators read.

In the order of one run::

    axis           how many events there are, and the buckets of time
    activity       per bucket: messages, log records, commit latency, delays of backups
    transactions   a row per transaction; the slowest ones, and their events
    lives          processes of brokers, their roles, and when a broker was down
    readiness      when each backup was ready, and what kept it from that
    failovers      each change of the primary: how long it took, what was in flight, and its fate
    sizes          records per fsync, operations per transaction
    gathered       all of it as one value, `Report`, which is also the JSON
    page, plots    pure: `Report` to HTML; `page_text` has the style and the script
    fields         columns of the event table

Functions on DataFrames use native expressions only. Spark aggregates; the driver receives bounded aggregates. Each bound is a
constant ``MOST_...`` beside the function that has it. A list that a bound has cut says so on the page.
"""
