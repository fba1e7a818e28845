"""Kafka as a client sees it: configuration of clients, errors, rights, and questions to the brokers."""
