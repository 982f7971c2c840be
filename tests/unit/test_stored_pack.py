"""Stored packs: a pack's list read from entries is the one that the pack itself answers with."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.lanes import LANES
from shared.packs.entry import Entry, to_heading
from starter.steering.stored.stored_pack import StoredPack
from workflows.description import PAGE_MAX, page_of
from workflows.packs.state import PackState

SOON = 1_795_291_200_000
LATE = 1_795_294_800_000

others = st.none() | st.sampled_from(
    [
        {"lane": "long"},
        {"is_paused": True},
        {"parked_reason": "gone", "parked_at": SOON / 1000},
        {"attempt": 2},
        {"tenant": "acme"},
    ]
)
ends = st.sampled_from([{"ended": "done", "result": 3}, {"ended": "stopped"}, {"ended": "done", "is_expired": True}])
requests = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from(["active", "paused", "parked", "done", "stopped", "expired"]),
        "lane": st.sampled_from(list(LANES)),
        "due_before": st.integers(SOON, LATE).map(lambda moment: moment / 1000),
        "has_payloads": st.booleans(),
        "after": st.sampled_from(["", "m3", "m5"]),
        "limit": st.integers(1, 5),
    },
)


def entry(number: int, due: int, other: dict[str, Any] | None) -> Entry:
    """Make a message's entry; only one with other fields has them as its last column."""
    usual: Entry = [f"m{number}", due, 5000, 60_000, number, {"n": number}, [[1000, 1, "again", 0, ""]]]
    return usual if other is None else [*usual, other]


packs = st.tuples(
    st.lists(st.tuples(st.integers(SOON, LATE), others), max_size=8),
    st.lists(st.tuples(st.integers(SOON, LATE), ends), max_size=4),
)


@given(packs, requests)
def test_a_list_from_entries_is_the_packs_own(pack: tuple[list[Any], list[Any]], request: dict[str, Any]) -> None:
    """Whatever is asked for, and whatever is special of a message; also page by page."""
    alive, ended = pack
    heading = to_heading("feed", "short", index=0, packs=1, size=100, coalesce=0.0)
    state = PackState(
        heading
        | {"entries": [entry(n, *each) for n, each in enumerate(alive)]}
        | {"ended": [entry(n, *each) for n, each in enumerate(ended, len(alive))]}
    )
    stored = StoredPack(state=state)
    states = list(
        state.messages.finished() if request.get("state") in ("done", "stopped", "expired") else state.messages.alive()
    )

    assert stored.page(request) == page_of(states, request)["messages"]
    unlimited = {name: value for name, value in request.items() if name not in ("after", "limit")}
    assert stored.list(request) == page_of(states, unlimited | {"limit": PAGE_MAX})["messages"]
