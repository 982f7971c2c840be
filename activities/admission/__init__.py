"""What may put a message off before its handler is called."""
