"""The audit: from a feed, and perhaps the clients' own logs, to a verdict; and the story of each violation."""
