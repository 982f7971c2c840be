"""Calls of a pack's handlers: what goes into a batch, what is in flight, and what may have broken a worker."""
