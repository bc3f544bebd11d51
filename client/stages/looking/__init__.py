"""The commands ``understudy stages list`` and ``understudy stages show``, and what they find."""
