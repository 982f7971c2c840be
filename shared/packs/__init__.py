"""How the messages of a pack are written down, in a pack's state and on the way to it."""
