"""Spark, as every command uses it: the session, connectors, small tables and numbers, and the errors of input and surroundings."""
