"""Steering and querying existing messages, solo and packed."""
