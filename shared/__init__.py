"""What every process agrees on: messages, lanes, placement, settings, errors and the one way to connect."""
