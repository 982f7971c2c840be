"""Worker processes: the lanes they serve, how they start, drain and say that they are well."""
