"""From the rows of a source to a manifest."""
