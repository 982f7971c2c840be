"""Kafka records: what they ask for, and the dead letters of those that can't be read."""
