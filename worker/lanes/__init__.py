"""How a worker serves a lane, and what the first worker of a lane starts."""
