"""``scripts/check --house``: what a newcomer meets, in numbers."""
