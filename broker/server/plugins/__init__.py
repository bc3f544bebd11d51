"""Plugins of a broker process: what one brings to the edge, and what becomes of what it raises."""
