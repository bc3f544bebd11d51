"""Time, and what one turn of a leading broker gathers and releases: each class owns one state."""
