"""The commands about Kafka records: the bridge and dead letters."""
