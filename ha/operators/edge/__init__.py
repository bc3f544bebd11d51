"""The commands ``understudy step-down``, ``expel``, ``admit`` and ``promote``."""
