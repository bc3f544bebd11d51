"""The backup's end of the conversation: the log that comes, catch-ups, refills, votes."""
