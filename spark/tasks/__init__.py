"""The code that runs in Spark's tasks."""
