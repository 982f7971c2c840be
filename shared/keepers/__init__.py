"""Data that workflows keep for all processes: gates, idle capacity and measured capacity, and their wire forms."""
