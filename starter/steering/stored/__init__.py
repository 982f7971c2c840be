"""What the server has stored of packs: memos and histories, read side by side and without a worker."""
