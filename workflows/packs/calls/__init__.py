"""Calls of a pack's handlers: what goes into a batch, in which order, what is in flight, and what may break a worker."""
