"""Errors of the pipeline's input and surroundings. The commands print these, and end with code 2."""

from __future__ import annotations


class PipelineError(Exception):
    """The pipeline cannot do what it was asked to. The message names the object and the value."""


class SessionError(PipelineError):
    """Spark cannot run here: no PySpark, no Java, or a Java that is too old."""


class JarsError(PipelineError):
    """A connector of Spark cannot be had: it cannot be fetched, or is not the one that is pinned."""


class FeedError(PipelineError):
    """The feed cannot be read, or is not one feed: never taken for a feed in which nothing is wrong."""


class ClientLogError(PipelineError):
    """The clients' logs cannot be read, or are not of the run whose feed it is."""
