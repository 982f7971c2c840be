"""The Python API that starts, steers, lists and shows messages: `Control`, and the parts that it is made of."""

from starter.control.control import Control

__all__ = ["Control"]
