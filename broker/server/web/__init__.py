"""The HTTP port: pages and metrics, in slices between the turns of the loop."""
