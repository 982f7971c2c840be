"""The client of dormice's HTTP API: starts, changes, looks at and stops messages from any application."""

from dormice.client import Client, Envelope, Message, connect, connect_sync
from dormice.errors import GiveUp, Misconfigured, RetryLater

__all__ = ["Client", "Envelope", "GiveUp", "Message", "Misconfigured", "RetryLater", "connect", "connect_sync"]
