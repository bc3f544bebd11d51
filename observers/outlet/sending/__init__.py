"""Records of Kafka made of units: rules, topics, what cannot be sent, and how far an outlet is."""
