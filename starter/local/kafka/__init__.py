"""The embedded Kafka broker for one machine, and what it needs to run."""
