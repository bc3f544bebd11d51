"""The face of a run: a live view, figures, a text, and one HTML page."""
