"""Decisions of the transaction manager and of the state server: plain synchronous code without I/O.

In `manager`, `transaction` and `recovery` decide what a manager does next. Each is a generator: it yields one step, such as a verb
of a resource manager, and is sent the answer. `program` is the part of a program that has joined a transaction of another one. In
`register`, `state` decides what the state server records and answers, `programs` what it does for several programs. `status`
decides which octets of a status are believed. `profiles` reads the file of profiles. Beside the rooms stand the terms of all of
them: return codes, errors, states and names. The edges in `understudy.xa` carry out the steps and decide nothing.
"""
