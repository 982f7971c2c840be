"""What a bridge and its group tell of themselves."""
