"""The coordination store: its ports, and what stands in it. The drivers are in `edge`."""
