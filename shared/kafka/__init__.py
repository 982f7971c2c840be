"""Kafka as every process of dormice speaks it: how to connect, and how to send so that nothing is lost."""
