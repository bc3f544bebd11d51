"""The outlet: committed transactions of a journal, for Kafka (docs/outlet.md): `reading`, `sending`, and I/O in `edge`."""
