"""The edge of a broker process: sockets, files, threads, signals, and the turn that they all feed.

``process`` goes from a configuration file to an exit code, ``turn`` runs the cores of a data directory and ends their turns,
``sockets`` are those of clients, ``files`` the disk, ``web`` the HTTP port, ``plugins`` what plugins bring along. No rule of
business stands here: what may be answered, and when, the core decides.

Nothing is re-exported: importing one of the modules must not import uvloop and the rest of them.
"""
