"""Gates and idle capacity, as people switch them."""
