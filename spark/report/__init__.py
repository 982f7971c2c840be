"""Reports on the messages of a manifest, and the proof that none is missing."""
