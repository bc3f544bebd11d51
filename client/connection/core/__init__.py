"""Decisions of the client's connection, without I/O: which address is next, what is declared again, what a loss means.

Procedures are generators. Each yields calls (functions without arguments) of its driver, and is sent the result or thrown the
error. An asyncio driver awaits what the call returns; a threads driver calls it. So both have one behaviour.
"""
