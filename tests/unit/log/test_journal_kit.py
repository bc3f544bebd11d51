"""Helpers that the tests of the journal share; no tests."""

from __future__ import annotations
