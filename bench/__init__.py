"""Benchmarks: one scenario per file, the file's name is the scenario's. Run them with `./run bench NAME`."""
