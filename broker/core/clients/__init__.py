"""One client: its connection and channels, and the methods that it may call."""
