"""The format `temporal` of Spark's Data Source API."""
