"""Monitoring of a bridge and its group: lag, readiness, metrics and status."""
