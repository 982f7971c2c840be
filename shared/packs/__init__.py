"""How a pack's messages are written down: in its state and on the way to it."""
