"""Pickling: sends our objects to the executors; without dormice there, the error says so in one sentence."""

import pickle
from collections.abc import Callable
from typing import Any


class PicklableByName:
    """Base class of all that Spark sends to its workers; unpickling first checks that our packages are installed."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        """Pickle as bytes and a local function, because Spark's pickler sends local functions by value."""
        return _make_unpacker(), (pickle.dumps((type(self), self.__dict__)),)


def _make_unpacker() -> Callable[[bytes], Any]:
    def unpack(packed: bytes) -> Any:
        # runs on executors that may lack dormice, so it uses nothing from outside this function
        import pickle  # noqa: PLC0415
        import platform  # noqa: PLC0415 — see above

        try:
            cls, state = pickle.loads(packed)  # noqa: S301 — sent by our own driver
        except ImportError as exc:
            raise RuntimeError(
                f"dormice can't be used on executor {platform.node()} ({exc}); install its wheel with the extra "
                "'spark' in the Python that PYSPARK_PYTHON names there"
            ) from None
        made = cls.__new__(cls)
        made.__dict__.update(state)
        return made

    return unpack
