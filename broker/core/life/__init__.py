"""The life of one core: put together, recovered, its turns, its end."""
