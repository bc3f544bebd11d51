"""Exchanges, queues and bindings by name, and the way of a message through them."""
