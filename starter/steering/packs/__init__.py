"""Packs from outside: signals for their messages, queries that only they can answer, and lists of what they hold."""
