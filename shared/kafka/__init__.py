"""Kafka for all processes of dormice: how to connect, and how to send so that nothing is lost."""
