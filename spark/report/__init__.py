"""What became of messages, and the proof that none is missing."""
