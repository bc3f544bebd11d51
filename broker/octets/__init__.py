"""Octets: in several buffers, and their checksum."""
