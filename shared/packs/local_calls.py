"""Calls of local activities: they run in the process of their workflow, so what they get need not become JSON and back.

Temporal stores neither a local activity's input nor compares it on a replay. A batch of 500 messages has thousands of
objects, which would be made a second time only to be read.
"""

import itertools
import weakref
from typing import Any


class LocalCall(dict[str, Any]):
    """What a local activity gets: to be read only, because the workflow goes on with the same objects."""


_calls: weakref.WeakValueDictionary[int, LocalCall] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def lend(call: LocalCall) -> int:
    """Give a number by which `find_call` finds the call in this process, as long as the caller keeps it."""
    number = next(_numbers)
    _calls[number] = call
    return number


def find_call(number: int) -> LocalCall | None:
    """Give the call of a number; None when its workflow has left the cache, so that nobody waits for it any more."""
    return _calls.get(number)
