"""The contents of a journal, for people: segments, and why they are still there. The commands are in `edge`."""
