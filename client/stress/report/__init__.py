"""What people see of a run: a live view, figures, a text, and one HTML page."""
