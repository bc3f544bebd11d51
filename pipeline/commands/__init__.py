"""The commands ``understudy audit``, ``understudy report`` and ``understudy stream``: options in, exit code out."""
