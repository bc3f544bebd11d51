"""Observers of the hooks of a primary (`transaction_observer`), and readers of journals: `feed`, `outlet`, `journal`."""
