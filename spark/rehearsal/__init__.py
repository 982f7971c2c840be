"""The rehearsal on Spark, for histories of millions of pages: the part of the extra `rehearsal` that needs Spark."""
