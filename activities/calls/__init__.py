"""The activities that call handlers: one message at a time, or a batch of a pack."""
