"""The `webhook` handler: what it sends, and what an answer says is next."""
