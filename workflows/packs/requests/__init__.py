"""What others ask of a pack: which messages it admits, the receipts of that, and what it sends on to other packs."""
