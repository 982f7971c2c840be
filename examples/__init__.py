"""Things to look at and run: the demonstration, a ledger for handlers, real feed addresses."""
