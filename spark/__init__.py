"""The Spark pipeline: prepare a manifest from any source, start it, report on it, prove that nothing is missing."""
