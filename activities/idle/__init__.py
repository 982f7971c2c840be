"""Idle capacity: how much of it there is, which messages are due first, and waking those."""
