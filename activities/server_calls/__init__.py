"""Calls to the server that workflows need beside their handlers."""
