"""The HTTP API: messages for applications that import nothing of dormice."""
