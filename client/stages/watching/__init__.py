"""What a worker shows of itself: counts, log lines, spans and pages; and the named points at which tests kill it."""
