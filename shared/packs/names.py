"""Names by which a pack, its batches and whoever reads its history know each other."""

RUN_BATCH = "run_batch"
"""The activity that runs a batch."""
REPORT = "report"
"""Signal by which a batch reports finished messages while its other handlers still work."""
AT_WORK = "at_work"
"""Query by which a retried batch learns which of its messages the pack still waits for."""
