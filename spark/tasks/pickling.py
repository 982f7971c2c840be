"""Pickling: sends our objects to the executors; without dormice there, the error says so in one sentence."""

import pickle
from collections.abc import Callable
from typing import Any


class PicklableByName:
    """Base class of all that Spark sends to its workers; unpickling first checks that our packages are installed."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str, bytes]]:
        """Pickle as bytes and a local function, because Spark's pickler sends local functions by value."""
        cls = type(self)
        return _make_unpacker(), (cls.__module__, cls.__qualname__, pickle.dumps(self.__dict__))


def _make_unpacker() -> Callable[[str, str, bytes], Any]:
    def unpack(module: str, name: str, state: bytes) -> Any:
        # runs on executors that may lack dormice, so it uses nothing from outside this function
        import importlib  # noqa: PLC0415
        import pickle  # noqa: PLC0415 — see above
        import platform  # noqa: PLC0415

        try:
            found = getattr(importlib.import_module(module), name)
        except ImportError as exc:
            raise RuntimeError(
                f"dormice can't be used on executor {platform.node()} ({exc}); install its wheel with the extra "
                "'spark' in the Python that PYSPARK_PYTHON names there"
            ) from None
        made = found.__new__(found)
        made.__dict__.update(pickle.loads(state))  # noqa: S301 — sent by our own driver
        return made

    return unpack
