"""Chaos: tests the promises under faults, on the real system and in a simulation."""
