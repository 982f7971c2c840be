"""Calls of a pack's handlers: what goes into a batch and in which order, what is in flight, what may break workers."""
