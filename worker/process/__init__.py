"""A worker's process: its event loop and memory, and the way out of a stuck run."""
