"""The commands ``understudy journal dump`` and ``understudy journal stats``."""
