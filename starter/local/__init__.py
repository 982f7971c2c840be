"""Servers for one machine: Temporal's, Kafka's, and the codec server."""
