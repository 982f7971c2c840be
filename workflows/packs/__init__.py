"""The state of a pack, by idea; no Temporal in here."""
