"""The resource managers that a transaction manager can drive, each behind one adapter.

An adapter translates verbs into calls of a client library, and errors of the library into return codes. It decides nothing.
`broker` is the broker by class 100 or by messages, `postgresql` a PostgreSQL server, `dbapi` any PEP 249 module with two-phase
commit, and `scripted` answers as a test wants.
"""
