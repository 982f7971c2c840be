"""Names of the activities that run a pack's batches."""

RUN_BATCH = "run_batch"
"""Begins the calls of a batch, and answers within seconds."""
AWAIT_CALLS = "await_calls"
"""Waits, in the worker process that began them, for calls that were still in flight when their batch answered."""
