"""Temporal: the one way to connect, and how payloads and search attributes are encoded."""
