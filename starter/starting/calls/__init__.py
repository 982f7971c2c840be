"""Many calls to the server at once, at a pace that it bears."""
