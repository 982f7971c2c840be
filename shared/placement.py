"""Placement: the one function that knows which workflow, on which task queue, a (kind, id) lives in."""

import hashlib
from dataclasses import dataclass

from shared.lanes import task_queue

MESSAGE_WORKFLOW = "message"
"""Workflow type of the solo encoding; histories outlive module paths, so the name is fixed here."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a message lives."""

    workflow_id: str
    task_queue: str


def workflow_id(kind: str, message_id: str) -> str:
    """Name the workflow of a message; a kind never holds a colon, so the name splits back unambiguously."""
    return f"{kind}:{message_id}"


def identity_of(workflow_id: str) -> tuple[str, str]:
    """Split a workflow id back into (kind, id)."""
    kind, _, message_id = workflow_id.partition(":")
    return kind, message_id


def place(kind: str, message_id: str, lane: str, prefix: str) -> Placement:
    """Say where a message lives: one workflow per message on its lane's task queue."""
    return Placement(workflow_id(kind, message_id), task_queue(prefix, lane))


def unit_hash(text: str) -> float:
    """Map text to [0, 1), the same on every machine and Python version (BLAKE2b, first 53 bits of 8 bytes)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53  # a float holds 53 bits: more of them could round up to 1
