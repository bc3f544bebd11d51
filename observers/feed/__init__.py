"""The event feed: the journals of brokers, read as events (docs/feed.md). What reads and writes files is in `edge`."""
