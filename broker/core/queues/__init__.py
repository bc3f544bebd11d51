"""A queue: its messages in order, what it may hold, who consumes, what came back."""
