"""The commands that start, show and steer messages."""
