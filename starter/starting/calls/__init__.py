"""Many calls to the server at once, at a rate that it can handle."""
