"""State checks: compare each pack and message after every task with the answers that senders got."""

# The checks read the private state of packs.
# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001

from typing import TYPE_CHECKING, Any, NamedTuple

from shared.messages.message import MessageState
from shared.messages.placement import PACK_WORKFLOW, identity_of, pack_index, pack_workflow_id
from shared.packs.entry import ID, PAYLOAD, VERSION, Entry, is_ended, measure, sources_of
from workflows.packs.requests.receipts import RECEIPTS_BYTES_MAX
from workflows.packs.state import PackState

if TYPE_CHECKING:  # the ledger imports this module, so an import at run time would be circular
    from chaos.simulation.ledger.ledger import Ledger
    from chaos.simulation.replica.replica import Replica
    from chaos.simulation.server.run import Run

RECEIPT_BYTES = 20_000
"""Largest size of one receipt, by which all receipts may exceed their limit."""


class _Seen(NamedTuple):
    """A pack's state after its last completed task."""

    alive: frozenset[str]
    packs: int
    leaving: frozenset[str]


class StateChecks:
    """Compares each state with its previous state and with the ledger."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self._seen: dict[str, _Seen] = {}
        self._revisions: dict[tuple[str, str], int] = {}

    def check(self, run: "Run", replica: "Replica") -> None:
        """Check the state of a run."""
        if run.workflow_type == PACK_WORKFLOW:
            self._check_pack(run.workflow_id, replica.object._pack)
            self._check_batches(run.workflow_id, replica.object)
        else:
            kind, message_id = identity_of(run.workflow_id)
            state: MessageState = replica.object._state
            if not state.ended:
                self._check_revision(kind, message_id, state.payload["rev"], run.workflow_id)

    def _check_pack(self, name: str, pack: PackState) -> None:
        entries = list(pack.entries.read())
        alive = frozenset(entry[ID] for entry in entries) | frozenset(pack.in_flight.messages)
        before = self._seen[name].alive if name in self._seen else frozenset[str]()
        self._seen[name] = _Seen(alive, pack.config.packs, frozenset(pack.messages.leaving))
        self._check_sizes(name, pack)

        for message_id in sorted(before - alive - frozenset(pack.limits.ended)):
            if pack_index(message_id, pack.config.packs) == pack.config.index:
                self._ledger.violate(f"{name} had {message_id} and has it no more")

        for message_id in sorted(alive - before):
            self._check_alone(name, pack, message_id)

        for entry in (*entries, *pack.limits.ended.values()):
            self._check_entry(name, pack, entry)

    def _check_batches(self, name: str, workflow: Any) -> None:
        pack: PackState = workflow._pack
        for message_id, running in pack.in_flight.messages.items():
            version = running.entry[VERSION]
            tracked = self._ledger.of(pack.config.kind, message_id)
            # from now on signals affect the next version, even if this version's handler is called later
            tracked.decided_from.setdefault(version + 1, self._ledger.now)
            tracked.decided = version
            batch = pack.in_flight.batches.get(running.token)
            if batch is None or message_id not in [batch.ids[n] for n in batch.left]:
                self._ledger.violate(f"{name}: {message_id} is at work in batch {running.token}, which is over")

    def _check_sizes(self, name: str, pack: PackState) -> None:
        counted = sum(measure(entry) for entry in (*pack.entries.read(), *pack.limits.ended.values()))
        counted += sum(running.size for running in pack.in_flight.messages.values())
        if counted != pack.limits.bytes:
            self._ledger.violate(f"{name} believes to hold {pack.limits.bytes:,} bytes and holds {counted:,}")
        receipts = sum(measure(kept) for kept in pack.receipts.items())
        if receipts > RECEIPTS_BYTES_MAX + RECEIPT_BYTES:
            self._ledger.violate(f"{name} keeps {receipts:,} bytes of receipts")
        if pack.config.packs == self._min_packs() and counted > pack.limits.bytes_max + 10_000:
            self._ledger.violate(f"{name} holds {counted:,} bytes")

    def _min_packs(self) -> int:
        return min(seen.packs for seen in self._seen.values())

    def _check_alone(self, name: str, pack: PackState, message_id: str) -> None:
        for other, there in self._seen.items():
            is_twice = other != name and message_id in there.alive - there.leaving
            if is_twice and pack_workflow_id(pack.config.kind, pack_index(message_id, there.packs)) == other:
                self._ledger.violate(f"{message_id} is alive in {other} and in {name}")

    def _check_entry(self, name: str, pack: PackState, entry: Entry) -> None:
        message_id: str = entry[ID]
        tracked = self._ledger.of(pack.config.kind, message_id)
        if pack_index(message_id, pack.config.packs) != pack.config.index:
            return

        for source, offset in tracked.offsets.items():
            if sources_of(entry).get(source, -1) < offset:
                self._ledger.violate(f"{name}: {message_id} was acknowledged up to {source}:{offset}, it has {entry}")

        if is_ended(entry):
            return

        tracked.decided = entry[VERSION]
        if tracked.is_stopped:
            self._ledger.violate(f"{name}: {message_id} is alive after its stop was acknowledged")

        is_paused = len(entry) > PAYLOAD + 2 and "is_paused" in entry[-1]
        if tracked.is_paused is not None and is_paused != tracked.is_paused and not tracked.may_be_over:
            said = "paused" if tracked.is_paused else "resumed"
            self._ledger.violate(f"{name}: {message_id} was {said}, which was acknowledged, and is not")

        self._check_revision(pack.config.kind, message_id, entry[PAYLOAD]["rev"], name)

    def _check_revision(self, kind: str, message_id: str, revision: int, where: str) -> None:
        tracked = self._ledger.of(kind, message_id)
        if revision < tracked.revision:
            acknowledged = f"revision {tracked.revision} was acknowledged"
            self._ledger.violate(f"{where}: {message_id} has revision {revision}, {acknowledged}")
        if revision < self._revisions.get((kind, message_id), 0):
            self._ledger.violate(f"{where}: {message_id} went back to revision {revision}")
        self._revisions[kind, message_id] = revision
