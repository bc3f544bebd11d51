"""I/O that feed and outlet share: connections to Kafka, and the process beside a broker."""
