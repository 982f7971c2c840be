"""Deterministic code only: the decision, the workflows that carry messages, their timeouts and retry policies."""
