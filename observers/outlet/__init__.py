"""The outlet: committed transactions of a journal, for Kafka (docs/outlet.md). What reads files and sends is in `edge`."""
