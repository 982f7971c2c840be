"""Tracks: check the entries of the ledger of one message, one by one."""
