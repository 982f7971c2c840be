"""Shipping: how our objects reach the executors, which say in one sentence when dormice is not installed there."""

import pickle
from collections.abc import Callable
from typing import Any


class PicklableByName:
    """A base of whatever Spark sends to its workers: what it holds is unpacked only where our packages are found."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str, bytes]]:
        """Travel as bytes and a function that Spark's pickler sends along whole, because it is nobody's attribute."""
        cls = type(self)
        return _make_unpacker(), (cls.__module__, cls.__qualname__, pickle.dumps(self.__dict__))


def _make_unpacker() -> Callable[[str, str, bytes], Any]:
    def unpack(module: str, name: str, held: bytes) -> Any:
        # runs on executors that may lack us: nothing from outside this function
        import importlib  # noqa: PLC0415
        import pickle  # noqa: PLC0415 — see above
        import platform  # noqa: PLC0415

        try:
            found = getattr(importlib.import_module(module), name)
        except ImportError as exc:
            raise RuntimeError(
                f"dormice can't be used on executor {platform.node()} ({exc}); install its wheel with the extra 'spark' "
                "in the Python that PYSPARK_PYTHON names there"
            ) from None
        made = found.__new__(found)
        made.__dict__.update(pickle.loads(held))  # noqa: S301 — sent by our own driver
        return made

    return unpack
