"""JSON values: the one place that parses, checks and measures what travels as a payload."""

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NoReturn, cast

import orjson

MAX_DEPTH = 64  # deeper nesting is refused: parsers on the way have different limits
MAX_DIGITS = 4300  # longer whole numbers are refused: by default Python neither reads nor writes them

_INT_LIMIT = 10**MAX_DIGITS
_TOO_LONG = f"holds a whole number of more than {MAX_DIGITS} digits"
_BOM = "\ufeff"
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SHAPES = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBER = b"0" * 16  # a float keeps fifteen digits of any number
_TINY_NUMBER = b"e-000"
_DOUBTFUL_NUMBER = re.compile(rb"[0-9][0-9.]{15,}(?:[eE][-+]?[0-9]+)?|[0-9.]+[eE]-[0-9]{3,}")
_WHOLE_DIGITS_MAX = 18  # orjson keeps all whole numbers of so many digits, whatever their sign
_FLOAT_DIGITS_MAX = 767  # no float has more digits, written in full
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parse_json(text: str | bytes) -> Any:
    """Parse strict JSON that somebody hands in; bytes are UTF-8, a byte-order mark in front is skipped.

    Raises ValueError with half a sentence ("is no JSON …") for anything that is not JSON by RFC 8259, NaN and Infinity
    included, for a number that a float would round, and for an object with a duplicate key, because readers differ in
    which value they take.
    """
    value = _parse(text, _REFUSING_DECODER)
    if type(value) in (dict, list) and _may_repeat_keys(text, value):
        _parse_strict(text, _REFUSING_DECODER)
    return value


def decode_json(text: str | bytes) -> Any:
    """Parse JSON written by a program, like `parse_json`; of a duplicate key, the last value counts."""
    return _parse(text, _DECODER)


def _parse(text: str | bytes, decoder: json.JSONDecoder) -> Any:
    # orjson rounds long numbers, and does not explain what it refuses
    try:
        encoded = text.encode() if isinstance(text, str) else text
        return _parse_strict(text, decoder) if _may_round(encoded) else orjson.loads(encoded)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return _parse_strict(text, decoder)


def parse_plain_objects(texts: Sequence[bytes]) -> Iterator[dict[str, Any] | None]:
    """Parse JSON objects as `parse_json` does, None where that may explain, correct or refuse something; faster."""
    may_round = _may_hold_long_numbers(b"\n".join(texts))  # seldom, and for many texts the cheapest test
    for text in texts:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            yield None
            continue
        if type(value) is not dict or (may_round and _may_round(text)):
            yield None
        else:
            yield None if _may_repeat_keys(text, value) else cast("dict[str, Any]", value)


def is_kept(number: str) -> bool:
    """Whether a float keeps a decimal number: in its shortest form, or with as many digits, it reads the same."""
    value = float(number)
    if repr(value) == number:
        return True  # the usual case

    digits = number.lower().partition("e")[0].replace(".", "").strip("-0")
    if not digits or value == 0:
        return not digits
    if not math.isfinite(value) or len(digits) > _FLOAT_DIGITS_MAX:
        return False
    if len(digits) <= sys.float_info.dig and abs(value) >= sys.float_info.min:
        return True

    written = (repr(value), f"{value:.{len(digits) - 1}e}")
    return Decimal(number) in map(Decimal, written)


def _may_hold_long_numbers(text: bytes) -> bool:
    # without its points a number is one row of digits; ten times faster than a regular expression
    shape = text.translate(_SHAPES, b".")
    return _LONG_NUMBER in shape or _TINY_NUMBER in shape


def _may_round(text: bytes) -> bool:
    """Return whether a text may hold a number that orjson rounds; digits in strings may look like one."""
    return _may_hold_long_numbers(text) and not all(map(_is_read_exactly, _DOUBTFUL_NUMBER.findall(text)))


def _is_read_exactly(number: bytes) -> bool:
    text = number.decode()
    if text.isdecimal():
        return len(text) <= _WHOLE_DIGITS_MAX
    try:
        return is_kept(text)
    except ValueError:
        return False  # a text of digits and points, or no JSON


def _may_repeat_keys(text: str | bytes, value: Any) -> bool:
    """Return whether a text may have duplicate keys; comparing it with `value` written anew is the cheapest test.

    Without them both have the same number of colons, in strings and after keys, unless one is written as an escape.
    """
    try:
        colons = orjson.dumps(value).count(b":")
        raw = text.encode() if isinstance(text, str) else text
    except (TypeError, UnicodeEncodeError):
        return True
    return raw.count(b":") != colons or (b"\\" in raw and rb"\u003" in raw)


def _parse_strict(text: str | bytes, decoder: json.JSONDecoder) -> Any:
    try:
        # json.loads itself would guess UTF-16 and UTF-32 and let encoded surrogates through
        decoded = text if isinstance(text, str) else text.decode()
        return decoder.decode(decoded.removeprefix(_BOM))
    except json.JSONDecodeError as exc:
        problem = exc.msg.lower().removesuffix(" at")
        raise ValueError(f"is no JSON ({problem} at character {exc.pos + 1})") from exc
    except UnicodeDecodeError as exc:
        raise ValueError(f"is not UTF-8 text (byte {exc.start + 1})") from exc
    except RecursionError as exc:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels") from exc


def encode_json(value: Any) -> bytes:
    """Encode a checked value in compact form; size limits count the length of this form."""
    try:
        return orjson.dumps(value)
    except TypeError:  # whole numbers of more than 64 bits, and named tuples: JSON knows them, orjson does not
        return _ENCODER.encode(value).encode()


def encode_to_keep(value: Any) -> bytes:
    """Encode a checked value that stays in memory; copied, because orjson leaves 4 KB of room behind its result."""
    return bytes(memoryview(encode_json(value)))


def copy_json(value: Any) -> Any:
    """Copy a checked value, so that whoever gets the copy can't change it in place."""
    if not isinstance(value, dict | list):
        return value
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError:  # as in `encode_json`
        return decode_json(encode_json(value))


def find_flaw(value: Any, depth: int = 0) -> str | None:
    """Return why a Python value can't travel as JSON, as half a sentence, or None when it can."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if -_INT_LIMIT < value < _INT_LIMIT else _TOO_LONG
    if isinstance(value, float):
        return None if math.isfinite(value) else f"holds {value}, which JSON does not know"

    if isinstance(value, str):
        is_flawed = not value.isascii() and _SURROGATE.search(value)
        return "holds a lone surrogate, which UTF-8 can't carry" if is_flawed else None

    if depth >= MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    if isinstance(value, dict):
        return _find_flaw_in_object(cast("dict[Any, Any]", value), depth)

    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return next((flaw for item in items if (flaw := find_flaw(item, depth + 1))), None)

    return f"holds a {type(value).__name__}, which JSON does not know"


def find_size_flaw(value: Any, bytes_max: int) -> str:
    """Return half a sentence if a checked value takes too many bytes, else nothing; a limit of 0 is none."""
    if not bytes_max or (size := len(encode_json(value))) <= bytes_max:
        return ""
    return f"is {size} bytes of JSON, the limit is {bytes_max}; keep bulk data elsewhere and send its key"


def _find_flaw_in_object(value: dict[Any, Any], depth: int) -> str | None:
    for key, item in value.items():
        is_plain = (type(item) is str and item.isascii()) or (type(item) is float and math.isfinite(item))
        if is_plain and type(key) is str and key.isascii():
            continue
        if not isinstance(key, str):
            return f"has a key that is a {type(key).__name__}, not a string"
        if flaw := find_flaw(key, depth + 1) or find_flaw(item, depth + 1):
            return flaw
    return None


def _read_int(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_DIGITS:
        raise ValueError(_TOO_LONG)
    return int(digits)


def _read_float(number: str) -> float:
    value = float(number)
    if math.isinf(value) or is_kept(number):
        return value  # infinity is told by `find_flaw`
    raise ValueError(f"holds {number[:60]}, which a float would round to {value!r} (write it as text, in quotes)")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"holds {name}, which JSON does not know")


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"is ambiguous (the key {twice[:40]!r} is there twice)")
    return value


# json.loads would make a decoder for each call
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_read_int)
_REFUSING_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_float=_read_float,
    parse_int=_read_int,
    object_pairs_hook=_refuse_repeated_keys,
)
