"""The real server of Temporal on a private PostgreSQL, without Docker: for trials, tests and benchmarks."""
