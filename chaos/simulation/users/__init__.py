"""The users of a simulation: they start messages, steer them and let their kind have more packs."""
