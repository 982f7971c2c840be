"""Everything about Kafka: the embedded broker for one machine, and what it needs to run."""
