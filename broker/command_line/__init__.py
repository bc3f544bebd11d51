"""Commands of the console script besides running a broker: ``status``, ``dtx`` and ``journal check``.

``understudy.broker.cli`` is the front door; commands of plugins come to it through the entry point group ``understudy.commands``.
"""
