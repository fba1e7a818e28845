"""The Kafka client layer: client configuration, errors, rights, and requests to the brokers."""
