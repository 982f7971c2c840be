"""Steering and asking messages that are there, solo and packed."""
