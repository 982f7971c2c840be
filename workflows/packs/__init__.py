"""A pack, by idea: its state without Temporal, and its batches, signals and the limit of a run, which need it."""
