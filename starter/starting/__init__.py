"""Starting messages, solo and packed, in bulk."""
