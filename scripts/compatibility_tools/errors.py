"""Reasons why a suite cannot be run, in words for the person who started it."""


class CompatibilityError(Exception):
    """The run cannot go on; the message names the object and the value."""
