"""The commands that run processes or show what is installed."""
