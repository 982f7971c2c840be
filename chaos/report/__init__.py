"""The report of a run: printed, as JSON, and as the page of all published runs."""
