"""Rehearsal: how revisit policies would have done on a history of changes."""
