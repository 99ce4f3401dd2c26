"""The outbox: what is pending becomes one request, which is offered until its receipt is here.

Laws: at most one request is composed at a time; `encode` gives the same bytes whenever it is called
between `compose` and `settle`, also after a crash; `settle` and `abandon` each happen whole or not
at all. What `settle` removes cannot be read afterwards.

`Choosing` decides which of the pending samples the next request takes, and which orders it can
answer. Laws: nothing changes by choosing; what an order deletes is never divided; a corrected
sample travels with what it replaces.

`part_of` makes samples one part of a message: as rows, as exact statistics, or as a factor in
float64.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expunge.client import states
from expunge.client.database import Database
from expunge.client.folder import ClientFolder
from expunge.client.samples import Block, Recompute, Samples
from expunge.crypto import canonical
from expunge.errors import FormatError, InputError, ProtocolError, StoreError
from expunge.ridge.encoding import Rows
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.secagg import Contribution
from expunge.solvers.float64 import Factor
from expunge.wire import request
from expunge.wire.messages import FactorPart, GramPart, Message, Part, RowsPart, beyond, fitting
from expunge.wire.request import AuditAnswer, Header, OrderAnswer
from expunge.wire.schema import UNDISCLOSED


def part_of(spec: Spec, kind: str, blocks: Iterable[Block]) -> Part:
    """The part of a message of this kind for these samples, of which there is at least one."""
    if kind == "rows":
        return _rows(list(blocks))
    if kind == "gram":
        return _gram(spec, blocks)
    if kind == "factor":
        return _factor(spec, blocks)
    raise FormatError(f"a client sends rows, gram or factor messages; {kind!r} is unknown to it")


def _rows(blocks: list[Block]) -> RowsPart:
    rows = Rows.joined([block.rows for block in blocks])
    return RowsPart(rows, tuple(salt for block in blocks for salt in block.salts))


def _gram(spec: Spec, blocks: Iterable[Block]) -> GramPart:
    sums = Sums(spec)
    for block in blocks:
        sums.change(block.rows, 1)
    return GramPart(Statistics.snapshot(sums, by_construction=True))


def _factor(spec: Spec, blocks: Iterable[Block]) -> FactorPart:
    """R and Q'Y of the rows so far take the place of those rows, block by block."""
    r, coefficients = np.zeros((0, spec.width)), np.zeros((0, spec.columns))
    count, class_counts = 0, np.zeros(spec.columns if spec.is_classification else 0, dtype=np.int64)
    for block in blocks:
        rows = np.concatenate([r, np.ldexp(block.rows.integers, -spec.grid.fraction_bits)])
        targets = np.concatenate(
            [coefficients, np.ldexp(block.rows.targets.integers, -spec.label_grid.fraction_bits)]
        )
        q, r = np.linalg.qr(rows)
        coefficients = q.T @ targets
        count += len(block.rows)
        class_counts += block.rows.targets.class_counts
    return FactorPart(Factor(r, coefficients), count, class_counts)


@dataclass(frozen=True)
class Choice:
    """Which samples take part."""

    slots: list[int]
    all_of_them: bool  # nothing pending is left for a later request
    kind: str  # of the message
    problem: str = ""  # why something pending cannot be sent at all


class Choosing:
    """Looks at what is pending in a client's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next(self, spec: Spec, kind: str, most: int | None, largest: int | None) -> Choice:
        """Pending deletions, those for orders first, each with the sample that replaces it; then
        the other additions.
        """
        replaced = dict(
            self._database.rows(
                "SELECT old.slot, new.slot FROM samples old LEFT "
                "JOIN samples new ON new.replaces = old.slot AND new.state = 'adding' "
                "AND new.sequence IS NULL WHERE old.state = 'deleting' AND old.sequence IS NULL "
                "ORDER BY old.slot"
            )
        )
        additions = self._database.rows(
            "SELECT slot FROM samples WHERE state = 'adding' AND sequence IS NULL "
            "AND replaces IS NULL ORDER BY slot"
        )
        chosen: list[int] = []
        problem = ""
        for old, orders in self._inseparable():
            new = [slot for slot in (replaced.pop(one) for one in old) if slot is not None]
            if most is None or len(chosen) + len(old) + len(new) <= most:
                chosen += [*old, *new]
            elif chosen:
                return Choice(chosen, False, kind)
            elif other := fitting(
                spec, kind, largest, added=len(new), deleted=len(old), orders=len(orders)
            ):
                return Choice([*old, *new], False, other)
            else:
                problem = problem or beyond(spec, orders, len(old), largest)
        for group in (*replaced.items(), *additions):
            slots = [slot for slot in group if slot is not None]
            if most is not None and chosen and len(chosen) + len(slots) > most:
                return Choice(chosen, False, kind, problem)
            chosen += slots
        return Choice(chosen, not problem, kind, problem)

    def _inseparable(self) -> list[tuple[list[int], list[str]]]:
        """Samples to delete that must travel together, each group with the orders that wait for it.

        An order says how many samples were found for it when the last of them is deleted: that is
        all of them only if they travel together. Orders that wait for the same sample make one
        group.
        """
        waited: dict[str, set[int]] = {}
        for order, slot in self._database.rows(
            "SELECT id, slot FROM orders JOIN order_samples ON order_samples.order_id = id "
            "JOIN samples USING (slot) WHERE answered = 0 AND state = 'deleting' "
            "AND samples.sequence IS NULL ORDER BY id, slot"
        ):
            waited.setdefault(order, set()).add(slot)
        groups: list[tuple[set[int], list[str]]] = []
        for order, slots in waited.items():
            shared = [group for group in groups if not group[0].isdisjoint(slots)]
            groups = [group for group in groups if group[0].isdisjoint(slots)]
            groups.append(
                (
                    slots.union(*(one[0] for one in shared)),
                    [*(name for one in shared for name in one[1]), order],
                )
            )
        return sorted((sorted(slots), sorted(orders)) for slots, orders in groups)

    def reset(self, spec: Spec, kind: str, most: int | None, largest: int | None) -> Choice:
        """Everything; if that is too much even as statistics, a part of what stays, and the rest is
        added afterwards.
        """
        rows = self._database.rows(f"SELECT slot, {states.ADDED} FROM samples ORDER BY slot")  # noqa: S608 - our own words
        staying, going = (
            [slot for slot, stays in rows if stays],
            [slot for slot, stays in rows if not stays],
        )
        if most is None or len(staying) <= most:
            return Choice([*staying, *going], True, kind)
        if "gram" in spec.messages and fitting(spec, "gram", largest, added=len(staying)):
            return Choice([*staying, *going], True, "gram")
        return Choice([*staying[:most], *going], False, kind)

    def answerable(self, choice: Choice) -> list[str]:
        """Orders that wait for an answer, and all of whose samples are deleted by this request or
        are gone.
        """
        waiting = [
            row[0]
            for row in self._database.rows(
                "SELECT id FROM orders WHERE sequence IS NULL AND answered = 0 ORDER BY id"
            )
        ]
        if not waiting:
            return []
        taken = set(choice.slots)
        late = {
            order
            for order, slot in self._database.rows("SELECT order_id, slot FROM order_samples")
            if slot not in taken
        }
        return [order for order in waiting if order not in late]


NONCE_BYTES = 32
_SETTING = "INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)"


@dataclass(frozen=True)
class Composition:
    """A request that is being offered. Who takes part is written in the samples themselves.

    It is doubtful if it was offered and may have arrived without an answer: then it may have taken
    effect.
    """

    sequence: int
    nonce: bytes
    spec: Spec
    kind: str
    added: int
    deleted: int
    orders: tuple[OrderAnswer, ...] = ()
    audits: tuple[AuditAnswer, ...] = ()
    leave: bool = False
    reset: bool = False
    doubtful: bool = False


class Outbox:
    """Composes, encodes, settles and abandons requests."""

    def __init__(self, folder: ClientFolder, samples: Samples) -> None:
        self._folder = folder
        self._database = folder.database
        self._samples = samples
        self._choosing = Choosing(folder.database)

    # -- composing ---------------------------------------------------------------------------------

    def composed(self) -> Composition | None:
        """The request that is being offered, if there is one."""
        row = self._database.row(
            "SELECT sequence, slot, sealed, spec, kind, leave, reset, doubtful FROM compositions"
        )
        if row is None:
            return None
        sequence, slot, sealed, text, kind, leave, reset, doubtful = row
        content = canonical.decode(
            self._folder.vault.unseal(slot, sealed, _context(sequence)), "a composed request"
        )
        added, deleted = (len(slots) for slots in self._members(sequence, reset=bool(reset)))
        orders = self._database.rows(
            "SELECT id, found FROM orders WHERE sequence = ? AND answered = 0 ORDER BY id",
            (sequence,),
        )
        if "group" in content:
            added, deleted, orders = content["group"]
        return Composition(
            sequence=sequence,
            nonce=bytes.fromhex(content["nonce"]),
            spec=Spec.from_dict(
                canonical.decode(text.encode("ascii"), "the spec of a composed request")
            ),
            kind=kind,
            added=added,
            deleted=deleted,
            orders=tuple(OrderAnswer(*row) for row in orders),
            audits=tuple(AuditAnswer(*one) for one in content["audits"]),
            leave=bool(leave),
            reset=bool(reset),
            doubtful=bool(doubtful),
        )

    def compose(
        self,
        spec: Spec,
        kind: str,
        *,
        nonce: bytes | None = None,
        audits: Sequence[AuditAnswer] = (),
        reset: bool = False,
        sequence: int | None = None,
        most: int | None = None,
        largest: int | None = None,
        recompute: Recompute | None = None,
    ) -> Composition | None:
        """Freeze what is pending into the next request; None if nothing is.

        Answers to audits travel alone, so that it is plain which samples they are of. A reset takes
        every sample that stays, leaves out those that are being deleted, and answers no orders,
        because it deletes nothing by name.

        `most` limits the number of samples; deletions come first, what is left waits. But what an
        order deletes is never divided, nor is a reset if it can be helped: they may be sent as
        statistics instead, which are as large for any number of samples, within `largest` bytes.
        ProtocolError if nothing is left but an order that is beyond that.
        """
        self._require_none_composed()
        nonce = secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce
        if len(nonce) != NONCE_BYTES:
            raise InputError(f"a nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
        if reset:
            choice = self._choosing.reset(spec, kind, most, largest)
        else:
            choice = (
                Choice([], False, kind)
                if audits
                else self._choosing.next(spec, kind, most, largest)
            )
        orders = [] if audits or reset else self._choosing.answerable(choice)
        leave = self._leaving() and choice.all_of_them and not audits
        if (
            kind == "masked" and choice.slots
        ):  # what a round carries is told to nobody: orders and farewells follow it
            orders, leave = [], False
        if not (choice.slots or orders or audits or leave or reset):
            if choice.problem:
                raise ProtocolError(choice.problem)
            return None
        number = self._next() if sequence is None else sequence
        (slot,) = self._folder.vault.new()
        content = {
            "audits": [[one.audit, one.digest, one.count] for one in audits],
            "nonce": nonce.hex(),
        }
        sealed = self._folder.vault.seal(slot, canonical.encode(content), _context(number))
        text = canonical.encode(spec.to_dict()).decode("ascii")
        try:
            with self._database.transaction() as changes:
                changes.run(
                    "INSERT INTO compositions (sequence, slot, sealed, spec, kind, leave, reset, "
                    "doubtful)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                    (number, slot, sealed, text, choice.kind, int(leave), int(reset)),
                )
                states.freeze(changes, number, choice.slots)
                for order in orders:
                    _answer(changes, order, number, disclosed=kind != "masked")
                if kind == "factor" and choice.slots:
                    self._keep_message(spec, number, slot, recompute, reset=reset)
        except BaseException:
            self._folder.drop([slot])
            raise
        return self.composed()

    def compose_group(
        self,
        spec: Spec,
        message: bytes,
        *,
        added: int,
        deleted: int,
        orders: Sequence[OrderAnswer],
        sequence: int | None,
        reset: bool,
    ) -> Composition:
        """Freeze the message of a whole group into the next request, with the orders that all of
        the group have answered.
        """
        self._require_none_composed()
        number, (slot,) = self._next() if sequence is None else sequence, self._folder.vault.new()
        nonce = secrets.token_bytes(NONCE_BYTES).hex()
        content = {
            "audits": [],
            "group": [added, deleted, [[one.order, one.found] for one in orders]],
            "nonce": nonce,
        }
        seal, context = self._folder.vault.seal, _context(number)
        sealed, kept = seal(slot, canonical.encode(content), context), seal(slot, message, context)
        text = canonical.encode(spec.to_dict()).decode("ascii")
        try:
            with self._database.transaction() as changes:
                changes.run(
                    "INSERT INTO compositions (sequence, slot, sealed, message, spec, kind, "
                    "leave, reset, doubtful)"
                    " VALUES (?, ?, ?, ?, ?, 'group', 0, ?, 0)",
                    (number, slot, sealed, kept, text, int(reset)),
                )
        except BaseException:
            self._folder.drop([slot])
            raise
        composition = self.composed()
        if composition is None:
            raise StoreError(f"request {number} was composed and is not there")
        return composition

    def _require_none_composed(self) -> None:
        outstanding = self._database.value("SELECT sequence FROM compositions")
        if outstanding is not None:
            raise StoreError(
                f"request {outstanding} has no receipt yet: offer it again, or abandon it if it "
                "was refused"
            )

    def _keep_message(
        self, spec: Spec, sequence: int, slot: int, recompute: Recompute | None, *, reset: bool
    ) -> None:
        """Keep the message itself, sealed: floating point may give other bits another time."""
        parts = [
            self._part(spec, "factor", slots, recompute)
            for slots in self._members(sequence, reset=reset)
        ]
        sealed = self._folder.vault.seal(
            slot, Message("factor", *parts).to_bytes(spec), _context(sequence)
        )
        self._database.run(
            "UPDATE compositions SET message = ? WHERE sequence = ?", (sealed, sequence)
        )

    def _kept_message(self, sequence: int) -> bytes | None:
        ((slot, sealed),) = self._database.rows(
            "SELECT slot, message FROM compositions WHERE sequence = ?", (sequence,)
        )
        return (
            None if sealed is None else self._folder.vault.unseal(slot, sealed, _context(sequence))
        )

    def _next(self) -> int:
        return int(self._database.value("SELECT value FROM settings WHERE name = 'sequence'")) + 1

    def _leaving(self) -> bool:
        settings = dict(
            self._database.rows(
                "SELECT name, value FROM settings WHERE name IN ('leaving', 'left')"
            )
        )
        return settings.get("leaving") == "1" and settings.get("left") != "1"

    def _members(self, sequence: int, *, reset: bool) -> tuple[list[int], list[int]]:
        query = f"SELECT slot FROM samples WHERE sequence = ? AND {states.ADDED} ORDER BY slot"  # noqa: S608 - our own words
        added = [row[0] for row in self._database.rows(query, (sequence,))]
        if reset:
            return added, []
        query = "SELECT slot FROM samples WHERE sequence = ? AND state = 'deleting' ORDER BY slot"
        return added, [row[0] for row in self._database.rows(query, (sequence,))]

    def is_outdated(self) -> bool:
        """Whether a request that were composed now would have other samples than the one that is
        composed.
        """
        query = (
            "SELECT 1 FROM samples WHERE state = 'withdrawn' OR (state IN ('adding', 'deleting') "
            "AND sequence IS NULL)"
        )
        return self._database.row(query) is not None

    # -- offering ----------------------------------------------------------------------------------

    def encode(
        self,
        composition: Composition,
        federation: str,
        client: str,
        recompute: Recompute | None = None,
    ) -> bytes:
        """The bytes of the request, signed."""
        spec = composition.spec
        added, deleted = self._members(composition.sequence, reset=composition.reset)
        message = self._kept_message(composition.sequence)
        header = Header(
            federation=federation,
            client=client,
            sequence=composition.sequence,
            nonce=composition.nonce.hex(),
            data_digest=spec.data_digest,
            labels_digest=spec.labels_digest,
            message=composition.kind if added or deleted or message is not None else "none",
            added=composition.added,
            deleted=composition.deleted,
            orders=composition.orders,
            audits=composition.audits,
            leave=composition.leave,
            reset=composition.reset,
        )
        if message is None:
            parts = [
                self._part(spec, composition.kind, slots, recompute) for slots in (added, deleted)
            ]
            message = Message(header.message, *parts).to_bytes(spec)
        return request.write(
            header,
            self._samples.commitments(added),
            self._samples.commitments(deleted),
            message,
            self._folder.key,
        )

    def contribution(
        self, composition: Composition, recompute: Recompute | None = None
    ) -> Contribution:
        """What a composed request adds and deletes, for a round of secure aggregation; the same
        each time.
        """
        sums: list[Statistics | None] = []
        for slots in self._members(composition.sequence, reset=composition.reset):
            part = self._part(composition.spec, "gram", slots, recompute)
            sums.append(part.statistics if isinstance(part, GramPart) else None)
        return Contribution.of(sums[0], sums[1], composition.spec)

    def _part(
        self, spec: Spec, kind: str, slots: Sequence[int], recompute: Recompute | None
    ) -> Part | None:
        return part_of(spec, kind, self._samples.blocks(spec, slots, recompute)) if slots else None

    # -- the end of it -----------------------------------------------------------------------------

    def doubt(self, sequence: int, doubtful: bool) -> bool:
        """Note, durably, whether a request may have arrived without an answer; what was noted
        before.
        """
        before = bool(
            self._database.value(
                "SELECT doubtful FROM compositions WHERE sequence = ?", (sequence,)
            )
        )
        if before != doubtful:
            with self._database.transaction() as changes:
                changes.run(
                    "UPDATE compositions SET doubtful = ? WHERE sequence = ?",
                    (int(doubtful), sequence),
                )
        return before

    def settle(
        self, sequence: int, receipt: bytes, settings: Mapping[str, str], *, keep_features: bool
    ) -> None:
        """The receipt is here: what was added is live, what was deleted is gone, from the disk
        too.
        """
        if (
            self._database.value(
                "SELECT content FROM documents WHERE kind = 'receipt' AND number = ?", (sequence,)
            )
            == receipt
        ):
            self._folder.erase()  # which may have failed when the receipt came first
            return
        slot, leave, reset = self._outstanding(sequence)
        changed = {
            "sequence": str(sequence),
            "refusal": "",
            **({"left": "1"} if leave else {}),
            **({"rejoin": ""} if reset else {}),
        }
        fresh = self._database.rows(
            "SELECT slot FROM samples WHERE state = 'adding' AND sequence = ?", (sequence,)
        )
        with self._database.transaction() as changes:
            gone = states.settle(changes, sequence, reset=reset)
            changes.run(
                "INSERT INTO documents (kind, number, content) VALUES ('receipt', ?, ?)",
                (sequence, receipt),
            )
            changes.run("UPDATE orders SET answered = 1 WHERE sequence = ?", (sequence,))
            audits = canonical.decode(self._opened(sequence), "a composed request")["audits"]
            changes.run_many(
                "INSERT OR REPLACE INTO audits (id, sequence) VALUES (?, ?)",
                [(one[0], sequence) for one in audits],
            )
            changes.run("DELETE FROM compositions WHERE sequence = ?", (sequence,))
            changes.run_many(_SETTING, {**settings, **changed}.items())
            if not keep_features:
                self._samples.drop_features([row[0] for row in fresh])
        self._folder.erase([*gone, slot])

    def abandon(self, sequence: int, reason: str) -> None:
        """The server refused: everything is pending again, so that the cause can be mended."""
        slot, _, _ = self._outstanding(sequence)
        with self._database.transaction() as changes:
            gone = states.abandon(changes, sequence)
            changes.run(
                "UPDATE orders SET sequence = NULL, found = NULL WHERE sequence = ? "
                "AND answered = 0",
                (sequence,),
            )
            changes.run("DELETE FROM compositions WHERE sequence = ?", (sequence,))
            changes.run(_SETTING, ("refusal", reason))
        self._folder.erase([*gone, slot])

    def release(self) -> None:
        """The server knows this client no longer: nothing is on its way, and what was to be deleted
        is gone.
        """
        slots = [row[0] for row in self._database.rows("SELECT slot FROM compositions")]
        settings = {"gone": "1", "refusal": "", **({"left": "1"} if self._leaving() else {})}
        with self._database.transaction() as changes:
            gone = states.release(changes)
            changes.run("UPDATE orders SET answered = 1 WHERE answered = 0")
            changes.run("DELETE FROM compositions")
            changes.run_many(_SETTING, settings.items())
        self._folder.erase([*gone, *slots])

    def _outstanding(self, sequence: int) -> tuple[int, bool, bool]:
        row = self._database.row(
            "SELECT slot, leave, reset FROM compositions WHERE sequence = ?", (sequence,)
        )
        if row is None:
            raise StoreError(
                f"request {sequence} is not being offered: it was settled or abandoned before, or "
                "never composed"
            )
        return row[0], bool(row[1]), bool(row[2])

    def _opened(self, sequence: int) -> bytes:
        ((slot, sealed),) = self._database.rows(
            "SELECT slot, sealed FROM compositions WHERE sequence = ?", (sequence,)
        )
        return self._folder.vault.unseal(slot, sealed, _context(sequence))


def _answer(changes: Database, order: str, sequence: int, *, disclosed: bool) -> None:
    """Let a request answer an order, with the number of samples that it deletes for it, if that may
    be disclosed.
    """
    query = (
        "SELECT count(*) FROM samples WHERE order_id = ? AND sequence = ? AND state = 'deleting'"
    )
    found = changes.value(query, (order, sequence)) if disclosed else UNDISCLOSED
    changes.run("UPDATE orders SET sequence = ?, found = ? WHERE id = ?", (sequence, found, order))


def _context(sequence: int) -> bytes:
    return f"composition:{sequence}".encode("ascii")
