"""The edge of a broker process: sockets, files, threads, signals, and the turn that they all feed.

``run`` goes from a configuration file to an exit code; ``broker_server`` is the process, ``node_driver`` runs its cores and
ends their turns, ``client_session`` is one client's socket, ``journal_driver`` and ``file_storage`` are the disk,
``edge_plugin`` is what a plugin may bring along. No rule of business stands here: what may be answered, and when, the core
decides.

Nothing is re-exported: importing one of the modules must not import uvloop and the rest of them.
"""
