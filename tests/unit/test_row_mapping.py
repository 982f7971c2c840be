"""What rows mean: parts by their names or by pointers, the same rules as for records."""

from typing import Any

import pytest

from shared.errors import InvalidEnvelope
from starter.files.mapping import RowMapping
from starter.records.mapping import FormatOptions


def mapping(lane: str | None = None, **options: Any) -> RowMapping:
    """Make a mapping of options as typed."""
    return RowMapping(FormatOptions.read(**options), lane)


def test_columns_are_fields_by_their_names() -> None:
    """All others make up the payload; kind and lane are those of rows that name none."""
    reader = mapping("long", kind="feed").reader(["id", "kind", "url"], "a table")

    assert reader.to_fields(["1", "", "u"]) == {"id": "1", "kind": "feed", "lane": "long", "payload": {"url": "u"}}
    assert reader.to_fields(["1", "page", "u"])["kind"] == "page"


def test_columns_are_parts_of_an_object_where_they_are_mapped() -> None:
    """The whole row is the payload unless a part is; empty cells are absent; numbers in text are numbers."""
    options = {"kind": "feed", "id_from": "/number", "priority_from": "/urgency", "tenant_from": "/owner"}
    reader = mapping(**options).reader(["number", "urgency", "owner"], "a table")

    assert reader.to_fields(["7", "2", ""]) == {
        "kind": "feed",
        "id": "7",
        "priority": 2,
        "payload": {"number": "7", "urgency": "2"},
    }
    text = mapping(**options).reader(["number", "urgency", "owner"], "a CSV file", is_text=True)
    assert text.to_fields(["007", "2", "12"]) == {
        "kind": "feed",
        "id": "007",
        "priority": 2,
        "tenant": "12",
        "payload": {"number": "007", "urgency": 2, "owner": 12},
    }
    assert mapping(kind="/number", id_from="/owner").reader(["number", "owner"], "a").to_fields(["x", 5])["id"] == "5"


def test_a_json_line_is_an_envelope_or_is_mapped() -> None:
    """A kind may be found in it, too."""
    assert mapping(kind="/sort").to_fields({"id": "1", "sort": "feed"})["kind"] == "feed"
    assert mapping(id_from="/a/0", payload_from="/b").to_fields({"a": [4], "b": None}) == {"id": "4", "payload": None}


@pytest.mark.parametrize(
    ("options", "document", "sentence"),
    [
        ({"id_from": "/a"}, {"b": 1}, "id: is missing: there is no '/a' in the value; send it"),
        ({"kind": "/sort"}, {"id": "1"}, "kind: is missing: there is no '/sort' in the value; send it"),
        ({}, [1], "envelope: is no JSON object; send one, or map it with --id-from"),
    ],
)
def test_what_is_not_there_is_told(options: dict[str, str], document: Any, sentence: str) -> None:
    """By the field that misses it."""
    with pytest.raises(InvalidEnvelope) as told:
        mapping(**options).to_fields(document)
    assert str(told.value) == sentence
