"""The HTTP client that all handlers of a process share, and its guard."""
