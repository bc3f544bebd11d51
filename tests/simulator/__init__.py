"""The simulator: whole groups of the real core in one process, with a virtual clock, network, disks, store and clients.

Its tests stand in ``tests/simulation``, a file for each subject. ``README.md`` has a scenario in ten lines.
"""
