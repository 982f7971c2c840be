"""Checks of a simulation: that replays agree with histories, and that nothing stands still at the end."""
