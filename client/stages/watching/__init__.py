"""The face of a worker: counts, log lines, spans and pages; and the named points at which tests kill it."""
