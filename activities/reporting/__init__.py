"""What is reported of each cycle: metrics, spans and events."""
