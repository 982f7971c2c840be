"""Worker processes: the lanes they serve, how they start, drain and report their health."""
