"""Records of Kafka made of units: rules, topics, what cannot be sent; and what an outlet tells its broker of its progress."""
