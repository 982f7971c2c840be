"""Temporal's production server on a private PostgreSQL, without Docker: for trials, tests and benchmarks."""
