"""Connections to the state server and to brokers: the link, the process at its other end, secrets, TLS."""
