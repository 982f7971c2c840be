"""What brings messages in, by itself or in bulk: topics of Kafka, and files."""
