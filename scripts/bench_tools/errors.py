"""Errors of a run, in words for the person who started it."""


class BenchError(Exception):
    """The bench cannot go on; the message says what was tried and where the log is."""


class GeneratorError(BenchError):
    """One measurement failed; the others may still be made."""
