"""``understudy stages run`` and ``understudy stages tables``, and what other commands share: loading, a connection."""
