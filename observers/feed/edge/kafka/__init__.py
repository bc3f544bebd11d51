"""The event feed into a Kafka topic."""
