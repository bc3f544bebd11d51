"""Shrinking: from a seed that fails to a short scenario that fails the same way, as a text that people read.

==================  ===============================================================================================
``script``          a scenario as values: knobs, strikes, when the nemesis leaves, what is found; running one
``script_text``     its text, which stands in tests/scenario
``strike_text``     one strike's line of it
``ddmin``           delta debugging
``shrinker``        what is tried to make a scenario smaller, in which order
==================  ===============================================================================================
"""

from __future__ import annotations

from tests.simulator.shrinking.script import Finding, Script
from tests.simulator.shrinking.script_text import ScriptError, parse, read, show
from tests.simulator.shrinking.shrinker import HoldsError, Shrunk, shrink

__all__ = ["Finding", "HoldsError", "Script", "ScriptError", "Shrunk", "parse", "read", "show", "shrink"]
