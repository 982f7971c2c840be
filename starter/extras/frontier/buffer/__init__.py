"""The URLs of a frontier that may be fetched now, in the memory of the one process that gives them out."""
