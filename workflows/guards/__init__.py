"""Guards: what people, senders and workers without a key may do to a workflow, and that must not stop it."""
