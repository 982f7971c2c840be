"""Codec server: makes payloads readable for the Web UI and Temporal's CLI."""
