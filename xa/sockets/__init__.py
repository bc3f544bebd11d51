"""Connections to the state server and to brokers: the link, who is at its other end, secrets, TLS."""
