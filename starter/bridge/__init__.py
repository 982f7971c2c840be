"""Everything between a Kafka consumer group and the messages its records become."""
