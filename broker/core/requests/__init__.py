"""Requests by messages to reserved exchanges, and their answers."""
