"""What travels as JSON: parsing, flaws, sizes."""

import json
import math
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.json_value import (
    MAX_DEPTH,
    MAX_DIGITS,
    decode_json,
    encode_json,
    encode_to_keep,
    find_flaw,
    parse_json,
    parse_plain_objects,
)

ROUNDED = [
    ("12345678901234567.89", "1.2345678901234568e+16 (write it as text, in quotes)"),
    ("-1234567890123456.78", "-1234567890123456.8"),
    ("0.1234567890123456789", "0.12345678901234568"),
    ("1.00000000000000001", "1.0"),
    ("1e-400", "0.0"),
    ("1.2345e-320", "1.2347e-320"),
    ("0." + "0" * 400 + "1", "0.0"),
    ("9007199254740993.0", "9007199254740992.0"),
    ("9007199254740993E0", "9007199254740992.0"),
    ("0.1" + "0" * 800 + "1", "0.1"),
]
KEPT = [
    *("0.30000000000000004", "0.10000000000000001", "1.500000000000000000000", "0.10000000000000000000000", "5e-324"),
    *("0.1000000000000000055511151231257827", "123456789012345.67", "5.960464477539063e-8", "1E+2", "-0.0", "0e-400"),
    *("1764446400.123456", "123456789012345680.0", "1.7976931348623157e308"),
]

UTF8_TEXT = st.text(alphabet=st.characters(codec="utf-8"))
PLAIN_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | UTF8_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(UTF8_TEXT, inner, max_size=4),
    max_leaves=10,
)


def nest(depth: int, *, is_object: bool = False) -> Any:
    """Build lists or objects inside each other with that many levels."""
    value: Any = {} if is_object else []
    for _ in range(depth - 1):
        value = {"a": value} if is_object else [value]
    return value


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "is no JSON (expecting value at character 1)"),
        ("nul", "is no JSON"),
        ("01", "is no JSON"),
        ("[1,]", "is no JSON"),
        ("{'a':1}", "is no JSON (expecting property name enclosed in double quotes at character 2)"),
        ('{"a":1', "is no JSON (expecting ',' delimiter at character 7)"),
        ('"a\nb"', "is no JSON (invalid control character at character 3)"),
        ('"abc', "is no JSON (unterminated string starting at character 1)"),
        ("NaN", "holds NaN, which JSON does not know"),
        ("[Infinity]", "holds Infinity, which JSON does not know"),
        ('{"a":-Infinity}', "holds -Infinity, which JSON does not know"),
        (b'"\xff"', "is not UTF-8 text (byte 2)"),
        (b'"\xed\xa0\x80"', "is not UTF-8 text (byte 2)"),
        ('"a"'.encode("utf-16"), "is not UTF-8 text (byte 1)"),
        ('"a"'.encode("utf-32-le"), "is no JSON"),
        ("[" * 100_000, f"is nested deeper than {MAX_DEPTH} levels"),
        ("-" + "9" * (MAX_DIGITS + 1), f"holds a whole number of more than {MAX_DIGITS} digits"),
        ('{"a":1,"a":2}', "is ambiguous (the key 'a' is there twice)"),
        (b'{"b" : [{"a":"x:y","\\u0061" :2}]}', "is ambiguous (the key 'a' is there twice)"),
        ('{"a":"\\u003a","a":2}', "is ambiguous (the key 'a' is there twice)"),
        ('{"a":12345678901234567890123,"a":2}', "is ambiguous (the key 'a' is there twice)"),
        ('{"a":"\ud800","a":2}', "is ambiguous (the key 'a' is there twice)"),
        ("[" * 500 + '{"a":1,"a":2}' + "]" * 500, "is ambiguous (the key 'a' is there twice)"),
        *(
            (f'{{"n":{text}}}'.encode(), f"holds {text[:60]}, which a float would round to {read}")
            for text, read in ROUNDED
        ),
    ],
    ids=range(23 + len(ROUNDED)),
)
def test_what_is_no_json_is_refused_with_half_a_sentence(text: str | bytes, phrase: str) -> None:
    """The half sentence fits behind a field's name and says where the text goes wrong."""
    with pytest.raises(ValueError, match=r"^(is|holds) [^\n]*$") as caught:
        parse_json(text)

    assert str(caught.value).startswith(phrase)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("null", None),
        (" [1, 2.5, true] ", [1, 2.5, True]),
        ("\ufeff{}", {}),
        (b"\xef\xbb\xbf{}", {}),
        (b'"\xe2\x82\xac"', "\u20ac"),
        ('"\\ud83d\\udc2d"', "\U0001f42d"),
        ('[{"a":"10:20"},{"a":"\\":"}]', [{"a": "10:20"}, {"a": '":'}]),
        ("9" * MAX_DIGITS, int("9" * MAX_DIGITS)),
        ("-" + "9" * MAX_DIGITS, -int("9" * MAX_DIGITS)),
    ],
    ids=range(9),
)
def test_json_is_parsed_from_text_and_from_utf8_bytes(text: str | bytes, expected: Any) -> None:
    """A byte-order mark in front is skipped, escapes become characters, the same key may be in several objects."""
    assert parse_json(text) == expected


@given(st.dictionaries(UTF8_TEXT, PLAIN_JSON, min_size=1, max_size=4), st.data())
@settings(max_examples=200)
def test_a_key_that_is_there_twice_is_found_wherever_it_is_and_however_it_is_written(
    value: dict[str, Any], data: st.DataObject
) -> None:
    """Only what people hand in is refused: programs' own is read as every program reads it."""
    key = data.draw(st.sampled_from(sorted(value)))
    is_ascii = data.draw(st.booleans())
    gap = data.draw(st.sampled_from(["", " ", "\n\t"]))
    whole = json.dumps(value, ensure_ascii=is_ascii, separators=(f"{gap},", f"{gap}:"))
    repeated = f"{whole[:-1]},{json.dumps(key, ensure_ascii=not is_ascii)}:1}}"

    assert parse_json(whole) == value
    assert decode_json(repeated) == {**value, key: 1}
    with pytest.raises(ValueError, match="is ambiguous"):
        parse_json(repeated)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "holds nan, which JSON does not know"),
        (-math.inf, "holds -inf, which JSON does not know"),
        ([1, [math.inf]], "holds inf, which JSON does not know"),
        ("\ud800", "holds a lone surrogate, which UTF-8 can't carry"),
        ({"\udfff": 1}, "holds a lone surrogate, which UTF-8 can't carry"),
        ({"a": {"b": "x\udc00"}}, "holds a lone surrogate, which UTF-8 can't carry"),
        (10**MAX_DIGITS, "holds a whole number of more than 4300 digits"),
        ([-(10**MAX_DIGITS)], "holds a whole number of more than 4300 digits"),
        (b"raw", "holds a bytes, which JSON does not know"),
        ({1, 2}, "holds a set, which JSON does not know"),
        ([Decimal(1)], "holds a Decimal, which JSON does not know"),
        ({"at": datetime(2026, 11, 21, tzinfo=UTC)}, "holds a datetime, which JSON does not know"),
        ({1: "a"}, "has a key that is a int, not a string"),
        ({"a": {None: 1}}, "has a key that is a NoneType, not a string"),
        (nest(MAX_DEPTH + 1), "is nested deeper than 64 levels"),
        (nest(MAX_DEPTH + 1, is_object=True), "is nested deeper than 64 levels"),
        (nest(900), "is nested deeper than 64 levels"),
    ],
    ids=range(17),
)
def test_a_value_that_cannot_travel_has_its_flaw_named(value: Any, expected: str) -> None:
    """What Python accepts but JSON, UTF-8 or another parser on the way would not is found, however deep it sits."""
    assert find_flaw(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (0, 0),
        (-1.5, -1.5),
        ("", ""),
        ("\u20ac \U0001f42d", "\u20ac \U0001f42d"),
        ([], []),
        ((1, (2,)), [1, [2]]),
        (OrderedDict([("a", 1)]), {"a": 1}),
        (nest(MAX_DEPTH), nest(MAX_DEPTH)),
        (nest(MAX_DEPTH, is_object=True), nest(MAX_DEPTH, is_object=True)),
        (10**MAX_DIGITS - 1, 10**MAX_DIGITS - 1),
    ],
    ids=range(12),
)
def test_a_plain_value_has_no_flaw_and_can_be_written(value: Any, expected: Any) -> None:
    """What has no flaw can be written and read back; tuples become lists."""
    assert find_flaw(value) is None
    assert json.loads(encode_json(value)) == expected


@pytest.mark.parametrize("number", KEPT)
def test_a_number_that_a_float_keeps_is_taken(number: str) -> None:
    """Zeroes at its end, and the seventeen digits with which many programs write floats, lose nothing."""
    assert repr(parse_json(f"[{number}]")) == repr([float(number)])
    assert list(parse_plain_objects([f'{{"n":{number}}}'.encode()])) == [{"n": float(number)}]


def test_the_quick_parser_leaves_a_number_that_it_would_round_to_the_strict_one() -> None:
    """Digits in a string are no number."""
    texts = [f'{{"n":{number}}}'.encode() for number, _ in ROUNDED]
    texts.append(b'{"n":"1764446400000000","m":0.30000000000000004,"at":1764446400000000}')

    assert [document is None for document in parse_plain_objects(texts)] == [True] * len(ROUNDED) + [False]
    assert parse_json('{"n":"12345678901234567.89","m":"1e-400"}') == {"n": "12345678901234567.89", "m": "1e-400"}


def test_json_is_written_in_the_compact_form_that_limits_count() -> None:
    """No blanks, no escapes for what UTF-8 can carry."""
    assert encode_json({"a": [1, "\u20ac"]}) == b'{"a":[1,"\xe2\x82\xac"]}'


@settings(database=None)
@given(PLAIN_JSON)
def test_plain_json_survives_writing_and_parsing(value: Any) -> None:
    """Every flawless value comes back equal, from bytes as from text."""
    written = encode_json(value)

    assert find_flaw(value) is None
    assert parse_json(written) == value
    assert parse_json(written.decode()) == value


@pytest.mark.parametrize(
    "text",
    [
        *('{"a":1,"a":2}', "[1234567890123456789]", "[18446744073709551616]", "[-9223372036854775809]", "[1e400]"),
        *("[-0,-0.0]", "[5e-324]", "[123456789012345678901234567890.5]", '"\\ud83d\\ude00"', '"\\ud800"', '"é\\u0000"'),
    ],
)
@pytest.mark.parametrize("encode", [str, str.encode])
def test_every_value_is_read_as_python_reads_it(text: str, encode: Callable[[str], str | bytes]) -> None:
    """Whichever parser is at work: no digit is lost, and the last of two equal keys counts."""
    assert repr(decode_json(encode(text))) == repr(json.loads(text))


def test_what_is_kept_takes_no_more_memory_than_it_is_long() -> None:
    """A million messages that wait for others of their packs lie in memory like this."""
    tracemalloc.start()
    kept = [encode_to_keep({"id": number}) for number in range(1000)]
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert kept[7] == b'{"id":7}'
    assert taken < 1000 * 200
