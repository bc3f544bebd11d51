"""Drivers of the coordination store, and the choice among them."""
