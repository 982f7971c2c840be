"""The checks: whether the promises were kept, by what the ledger and the server say."""
