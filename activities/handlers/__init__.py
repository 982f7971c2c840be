"""Handlers that ship with dormice, one file each."""
