"""Requests of operators, and the rules for them (docs/operations.md). The commands are in `edge`."""
