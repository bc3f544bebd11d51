"""Servers for tests and trials: ``scripts/services`` runs this package."""
