"""How a pack's messages are encoded, in its state and on the way to it."""
