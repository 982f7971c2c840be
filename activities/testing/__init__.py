"""Tests of handlers, without a server: messages and contexts to call one with, and whole lives in virtual time."""

from activities.testing.context import make_context, make_message
from activities.testing.life import BEGIN, Cycle, EndlessLife, Life, live

__all__ = ["BEGIN", "Cycle", "EndlessLife", "Life", "live", "make_context", "make_message"]
