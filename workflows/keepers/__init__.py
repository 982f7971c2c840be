"""Workflows that keep something for everybody: gates, idle capacity, layouts, measured capacity."""
