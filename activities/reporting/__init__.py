"""What others are told of each cycle: metrics, spans and events."""
