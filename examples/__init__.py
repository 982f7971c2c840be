"""Examples to read and run: the demonstration, a ledger for handlers, real feed addresses."""
