"""Sockets of AMQP clients: listening, TLS, logging in, and carrying clients to the broker that leads."""
