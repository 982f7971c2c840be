"""Gates and idle capacity, switched by people."""
