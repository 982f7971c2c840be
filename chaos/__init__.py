"""Chaos: the promises tried out under faults, on the real thing and in a simulation."""
