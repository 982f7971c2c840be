"""Turning the rows of a source into a manifest."""
