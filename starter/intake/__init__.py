"""What brings messages in by themselves or in bulk: topics of Kafka, and files."""
