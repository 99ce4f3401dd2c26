"""The outbox: pending changes become one request, which is offered until its receipt is here.

Laws: at most one request is composed at a time; `encode` gives the same bytes whenever it is called
between `compose` and `settle`, also after a crash; `settle` and `abandon` each happen whole or not
at all. What `settle` removes cannot be read afterwards. Threads may share an outbox.

`Chooser` decides which of the pending samples the next request takes, and which orders it can
answer. Laws: choosing changes nothing; what an order deletes is never divided; a corrected sample
travels with what it replaces.

`part_of` makes samples one part of a message: as rows, as exact statistics, or as a factor in
float64.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np

from expunge import kinds
from expunge.client import states
from expunge.client.backlog import cap, expedite
from expunge.client.folder import ClientFolder, exclusive, put_settings
from expunge.client.samples import Block, Recompute, SampleTable
from expunge.client.settings import ClientSettings, checkpoint_text, spec_of, spec_text
from expunge.crypto import canonical
from expunge.errors import FormatError, InputError, ProtocolError, SpecMismatchError, StoreError
from expunge.kinds import MessageKind
from expunge.ridge.encoding import Rows
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.storage.sqlite import Database
from expunge.wire import request, schema
from expunge.wire.messages import FactorPart, GramPart, Message, Part, RowsPart, beyond, fitting
from expunge.wire.request import AuditAnswer, Header, OrderAnswer
from expunge.wire.schema import UNDISCLOSED

_REQUEST_KIND = schema.one_of(*kinds.REQUEST_KINDS)


def part_of(spec: Spec, kind: MessageKind, blocks: Iterable[Block]) -> Part:
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
    return GramPart(Statistics.of_sums(sums))


def _factor(spec: Spec, blocks: Iterable[Block]) -> FactorPart:
    """R and Q'Y of the rows so far take the place of those rows, block by block."""
    from expunge.solvers.float64 import Factor  # noqa: PLC0415 - for federations in float64 only

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
    """The samples that take part in a request."""

    slots: list[int]
    is_complete: bool  # nothing pending is left for a later request
    kind: MessageKind  # of the message
    problem: str = ""  # why something pending cannot be sent at all


# What is not there yet goes out only in the place of something that is.
_NOT_ADDITIONAL = "(state <> 'adding' OR replaces IS NOT NULL)"


class Chooser:
    """Chooses from the pending changes in a client's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next(
        self,
        spec: Spec,
        kind: MessageKind,
        most: int | None,
        largest: int | None,
        *,
        additions: bool = True,
    ) -> Choice:
        """Pending deletions, those for orders first, each with the sample that replaces it; then
        the other additions, unless these wait.

        Where everything is too much for one request, none of its parts is of fewer samples than
        the spec's `fewest_samples`, if `most` is twice as many.
        """
        replaced = dict(
            self._database.rows(
                "SELECT old.slot, new.slot FROM samples old LEFT "
                "JOIN samples new ON new.replaces = old.slot AND new.state = 'adding' "
                "AND new.sequence IS NULL WHERE old.state = 'deleting' AND old.sequence IS NULL "
                "ORDER BY old.slot"
            )
        )
        others = self._database.rows(
            "SELECT slot FROM samples WHERE state = 'adding' AND sequence IS NULL "
            "AND replaces IS NULL ORDER BY slot"
        )
        added = others if additions else []
        chosen: list[int] = []
        problem = ""
        for old, orders in self._inseparable():
            new = [slot for slot in (replaced.pop(deleted) for deleted in old) if slot is not None]
            if most is None or len(chosen) + len(old) + len(new) <= most:
                chosen += [*old, *new]
            elif len(chosen) >= max(1, spec.fewest_samples):
                return Choice(chosen, False, kind)
            elif len(old) + len(new) <= most:
                return Choice([*old, *new], False, kind)
            elif other := fitting(
                spec, kind, largest, added=len(new), deleted=len(old), orders=len(orders)
            ):
                return Choice([*old, *new], False, other)
            else:
                problem = problem or beyond(spec, orders, len(old), largest)
        for group in (*replaced.items(), *added):
            slots = [slot for slot in group if slot is not None]
            if most is not None and chosen and len(chosen) + len(slots) > most:
                return Choice(chosen, False, kind, problem)
            chosen += slots
        return Choice(chosen, not problem and len(added) == len(others), kind, problem)

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
                    slots.union(*(others for others, _ in shared)),
                    [*(name for _, names in shared for name in names), order],
                )
            )
        return sorted((sorted(slots), sorted(orders)) for slots, orders in groups)

    def reset(
        self,
        spec: Spec,
        kind: MessageKind,
        most: int | None,
        largest: int | None,
        *,
        additions: bool = True,
    ) -> Choice:
        """Everything, but for additions if these wait; if that is too much even as statistics, a
        part of what stays, and the rest is added afterwards.
        """
        rows = self._database.rows(
            f"SELECT slot, {states.ADDED} FROM samples "  # noqa: S608 - our own words
            f"WHERE {'TRUE' if additions else _NOT_ADDITIONAL} ORDER BY slot"
        )
        staying, going = (
            [slot for slot, stays in rows if stays],
            [slot for slot, stays in rows if not stays],
        )
        if most is None or len(staying) <= most:
            return Choice([*staying, *going], True, kind)
        if "gram" in spec.messages and fitting(spec, "gram", largest, added=len(staying)):
            return Choice([*staying, *going], True, "gram")
        return Choice([*staying[:most], *going], False, kind)

    def unanswered(self, now: float | None = None) -> list[str]:
        """Orders that wait for an answer, and are due at this time, if one is given."""
        query = (
            "SELECT id FROM orders WHERE sequence IS NULL AND answered = 0 "
            "AND (?1 IS NULL OR due <= ?1) ORDER BY id"
        )
        return [row[0] for row in self._database.rows(query, (now,))]

    def answerable(self, choice: Choice) -> list[str]:
        """Orders that wait for an answer, and all of whose samples are deleted by this request or
        are gone.
        """
        waiting = self.unanswered()
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


@dataclass(frozen=True)
class Composition:
    """A request that is being offered. The samples themselves record which of them take part.

    It is doubtful if it was offered and may have arrived without an answer: then it may have taken
    effect.
    """

    sequence: int
    nonce: bytes
    spec: Spec
    kind: MessageKind
    added: int
    deleted: int
    orders: tuple[OrderAnswer, ...] = ()
    audits: tuple[AuditAnswer, ...] = ()
    leave: bool = False
    reset: bool = False
    doubtful: bool = False

    @property
    def is_cover(self) -> bool:
        """Whether it holds nothing: the client takes part in a round for the sake of others."""
        changes = self.added + self.deleted
        return not (changes or self.orders or self.audits or self.leave or self.reset)


class Outbox:
    """Composes, holds, encodes, settles and abandons the requests of a store.

    An agent holds the lock `turn` while it continues from the composed request, so that two agents
    on one store take turns.
    """

    def __init__(
        self, settings: ClientSettings, folder: ClientFolder, samples: SampleTable
    ) -> None:
        self.turn = RLock()
        self._settings = settings
        self._folder = folder
        self._database = folder.database
        self._samples = samples
        self._chooser = Chooser(folder.database)
        self._composed: Composition | None = None  # a cache: of the database at this version
        self._version: int | None = None

    # -- composing ---------------------------------------------------------------------------------

    @exclusive
    def composed(self) -> Composition | None:
        """The request that is being offered, if there is one."""
        version = self._database.version
        if version is None or version != self._version:
            self._composed, self._version = self._read_composed(), version
        return self._composed

    def _read_composed(self) -> Composition | None:
        row = self._database.row(
            "SELECT sequence, slot, sealed, spec, kind, leave, reset, doubtful FROM compositions"
        )
        if row is None:
            return None
        sequence, slot, sealed, spec, kind, leave, reset, doubtful = row
        content = self._content(sequence, slot, sealed)
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
            spec=spec_of(spec),
            kind=kind,
            added=added,
            deleted=deleted,
            orders=tuple(OrderAnswer(*order) for order in orders),
            audits=tuple(AuditAnswer(*audit) for audit in content["audits"]),
            leave=bool(leave),
            reset=bool(reset),
            doubtful=bool(doubtful),
        )

    @exclusive
    def compose(
        self,
        *,
        nonce: bytes | None = None,
        audits: Sequence[AuditAnswer] = (),
        reset: bool = False,
        answering: bool = False,
        cover: bool = False,
        withheld: Collection[str] = (),
        waits: bool = False,
        additions: bool = True,
        sequence: int | None = None,
        most: int | None = None,
        largest: int | None = None,
        recompute: Recompute | None = None,
    ) -> Composition | None:
        """Freeze what is pending into the next request; None if nothing is, unless it is a `cover`
        for a round. Orders that are `withheld` are not answered yet. While the backlog `waits`, no
        samples are taken; without `additions`, none but those that replace others.

        Answers to audits travel alone, so that it is plain which samples they are of. A reset takes
        every sample that stays, leaves out those that are being deleted, and answers no orders,
        because it deletes nothing by name; unless it is `answering`, to a server that holds them
        until then.

        `most` limits the number of samples; deletions come first, what is left waits. But what an
        order deletes is never divided, nor is a reset if it can be helped: they may be sent as
        statistics instead, which are as large for any number of samples, within `largest` bytes.
        ProtocolError if nothing is left but an order that is beyond that.
        """
        kind = self._allowed_kind()
        self._require_none_composed()
        nonce = self._folder.machine.random(NONCE_BYTES) if nonce is None else nonce
        if len(nonce) != NONCE_BYTES:
            raise InputError(f"a nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
        spec = self._settings.spec
        if reset:
            choice = self._chooser.reset(spec, kind, most, largest, additions=additions)
        elif audits or waits:
            choice = Choice([], False, kind)
        else:
            choice = self._chooser.next(spec, kind, most, largest, additions=additions)
        disclosed = kind != "masked"
        # What a round carries is not disclosed: orders and farewells follow it.
        answers = not (audits or reset) and (disclosed or not choice.slots)
        answers = answers or (reset and answering)
        answerable = self._chooser.answerable(choice) if answers else []
        orders = [order for order in answerable if order not in withheld]
        leave = self._is_leaving() and choice.is_complete and not audits
        leave = leave and (disclosed or not (choice.slots or reset))
        if not (choice.slots or orders or audits or leave or reset or cover):
            if choice.problem:
                raise ProtocolError(choice.problem)
            return None
        number = self._settings.sequence + 1 if sequence is None else sequence
        content = {
            "audits": [[answer.audit, answer.digest, answer.count] for answer in audits],
            "nonce": nonce.hex(),
        }
        with self._new(number, choice.kind, content, leave=leave, reset=reset) as changes:
            states.freeze(changes, number, choice.slots)
            for order in orders:
                _answer(changes, order, number, disclosed=disclosed)
            if kind == "factor" and choice.slots:
                self._keep_message(number, recompute, reset=reset)
        return self.composed()

    @exclusive
    def compose_group(
        self,
        message: bytes,
        *,
        added: int,
        deleted: int,
        orders: Sequence[OrderAnswer] = (),
        sequence: int | None = None,
        reset: bool = False,
    ) -> Composition:
        """Freeze the message of a whole group into the next request, with the orders that all of
        the group have answered.
        """
        self._require_none_composed()
        number = self._settings.sequence + 1 if sequence is None else sequence
        content = {
            "audits": [],
            "group": [added, deleted, [[answer.order, answer.found] for answer in orders]],
            "nonce": self._folder.machine.random(NONCE_BYTES).hex(),
        }
        with self._new(number, "group", content, message=message, reset=reset):
            pass  # no samples take part
        composition = self.composed()
        if composition is None:
            raise StoreError(f"request {number} was composed and is not there")
        return composition

    @contextmanager
    def _new(
        self,
        number: int,
        kind: MessageKind,
        content: Mapping[str, Any],
        *,
        message: bytes | None = None,
        leave: bool = False,
        reset: bool = False,
    ) -> Iterator[Database]:
        """Write a request under a key of its own, in one transaction with what the caller changes
        for it.
        """
        vault, context = self._folder.vault, _context(number)
        (slot,) = vault.new()
        try:
            sealed = vault.seal(slot, canonical.encode(dict(content)), context)
            body = None if message is None else vault.seal(slot, message, context)
            with self._database.transaction() as changes:
                changes.run(
                    "INSERT INTO compositions (sequence, slot, sealed, message, spec, kind, "
                    "leave, reset, doubtful) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
                    (
                        *(number, slot, sealed, body, spec_text(self._settings.spec)),
                        *(kind, int(leave), int(reset)),
                    ),
                )
                yield changes
        except BaseException:
            self._folder.drop([slot])
            raise

    def _allowed_kind(self) -> MessageKind:
        kind, allowed = self._settings.message, self._settings.spec.messages
        if kind not in allowed:
            raise SpecMismatchError(
                f"the federation no longer allows {kind} messages, only "
                f"{', '.join(allowed)}: choose one of those for this client "
                "(message=). Mind that rows show every sample's feature to the server"
            )
        return kind

    def _require_none_composed(self) -> None:
        outstanding = self._database.value("SELECT sequence FROM compositions")
        if outstanding is not None:
            raise StoreError(
                f"request {outstanding} has no receipt yet: offer it again, or abandon it if it "
                "was refused"
            )

    def _keep_message(self, sequence: int, recompute: Recompute | None, *, reset: bool) -> None:
        """Keep the message itself, sealed: floating point may give other bits another time."""
        spec = self._settings.spec
        parts = [
            self._part(spec, "factor", slots, recompute)
            for slots in self._members(sequence, reset=reset)
        ]
        slot, _, _ = self._outstanding(sequence)
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

    def _is_leaving(self) -> bool:
        return self._settings.recall("leaving") == "1" and self._settings.recall("left") != "1"

    def _members(self, sequence: int, *, reset: bool) -> tuple[list[int], list[int]]:
        query = f"SELECT slot FROM samples WHERE sequence = ? AND {states.ADDED} ORDER BY slot"  # noqa: S608 - our own words
        added = [row[0] for row in self._database.rows(query, (sequence,))]
        if reset:
            return added, []
        query = "SELECT slot FROM samples WHERE sequence = ? AND state = 'deleting' ORDER BY slot"
        return added, [row[0] for row in self._database.rows(query, (sequence,))]

    @exclusive
    def is_outdated(self) -> bool:
        """Whether a request composed now would have other samples than the composed one."""
        query = (
            "SELECT 1 FROM samples WHERE state = 'withdrawn' OR (state IN ('adding', 'deleting') "
            "AND sequence IS NULL)"
        )
        return self._database.row(query) is not None

    @exclusive
    def unanswered(self, *, now: float | None = None) -> list[str]:
        """The orders that no request answers yet; only those that are due, if it is said what time
        it is `now`.
        """
        return self._chooser.unanswered(now)

    @exclusive
    def cap(self, now: float) -> None:
        """Let no deletion without an order wait for longer than one that is asked for at this time;
        noted durably.
        """
        with self._database.transaction() as changes:
            cap(changes, now)

    @exclusive
    def expedite(self, now: float) -> None:
        """Send what is pending at this time with the next request, however few samples they are;
        noted durably.
        """
        with self._database.transaction() as changes:
            expedite(changes, now)

    # -- offering ----------------------------------------------------------------------------------

    @exclusive
    def encode(self, composition: Composition, *, recompute: Recompute | None = None) -> bytes:
        """The bytes of a composed request, signed; the same ones each time."""
        spec = composition.spec
        added, deleted = self._members(composition.sequence, reset=composition.reset)
        message = self._kept_message(composition.sequence)
        header = Header(
            federation=self._settings.federation,
            client=self._settings.name,
            sequence=composition.sequence,
            nonce=composition.nonce.hex(),
            data_digest=spec.data_digest,
            labels_digest=spec.labels_digest,
            message=_REQUEST_KIND(
                composition.kind if added or deleted or message is not None else "none",
                "the message of the request",
            ),
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

    @exclusive
    def statistics(
        self, composition: Composition, *, recompute: Recompute | None = None
    ) -> tuple[Statistics | None, Statistics | None]:
        """Of what a composed request adds and of what it deletes, None for no samples; the same
        each time.
        """
        added, deleted = (
            self._part(composition.spec, "gram", slots, recompute)
            for slots in self._members(composition.sequence, reset=composition.reset)
        )
        return _statistics_of(added), _statistics_of(deleted)

    def _part(
        self, spec: Spec, kind: MessageKind, slots: Sequence[int], recompute: Recompute | None
    ) -> Part | None:
        return part_of(spec, kind, self._samples.blocks(spec, slots, recompute)) if slots else None

    # -- the end of it -----------------------------------------------------------------------------

    @exclusive
    def doubt(self, sequence: int, doubtful: bool = True) -> bool:
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

    @exclusive
    def settle(
        self,
        sequence: int,
        receipt: bytes,
        *,
        checkpoint: tuple[int, bytes] | None = None,
        entry: int | None = None,
        keep: bool = True,
    ) -> None:
        """The receipt is here, and has been verified: what was added is live, what was deleted is
        gone, from the disk too.

        `checkpoint` is the newest one seen (size and root), `entry` the number of the request's
        entry in the log. Receipts of covers need not be kept.
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
        settings = {
            **({} if checkpoint is None else {"checkpoint": checkpoint_text(*checkpoint)}),
            **({} if entry is None else {"entry": str(entry)}),
            "sequence": str(sequence),
            "refusal": "",
            **({"left": "1"} if leave else {}),
            **({"rejoin": "", "reset": ""} if reset else {}),
        }
        fresh = self._database.rows(
            "SELECT slot FROM samples WHERE state = 'adding' AND sequence = ?", (sequence,)
        )
        with self._database.transaction() as changes:
            gone = states.settle(changes, sequence, reset=reset)
            if keep:
                changes.run(
                    "INSERT INTO documents (kind, number, content) VALUES ('receipt', ?, ?)",
                    (sequence, receipt),
                )
            changes.run("UPDATE orders SET answered = 1 WHERE sequence = ?", (sequence,))
            changes.run_many(
                "INSERT OR REPLACE INTO audits (id, sequence) VALUES (?, ?)",
                [(audit, sequence) for audit, *_ in self._audits(sequence)],
            )
            changes.run("DELETE FROM compositions WHERE sequence = ?", (sequence,))
            put_settings(changes, settings)
            if self._settings.mode != "cached":
                self._samples.drop_features([row[0] for row in fresh])
        self._samples.drop_recent()
        self._folder.erase([*gone, slot])

    @exclusive
    def abandon(self, sequence: int, reason: str) -> None:
        """The server refused the request, and it has never taken effect: everything is pending
        again, so that the cause can be fixed.
        """
        slot, _, _ = self._outstanding(sequence)
        with self._database.transaction() as changes:
            gone = states.abandon(changes, sequence)
            changes.run(
                "UPDATE orders SET sequence = NULL, found = NULL WHERE sequence = ? "
                "AND answered = 0",
                (sequence,),
            )
            changes.run("DELETE FROM compositions WHERE sequence = ?", (sequence,))
            put_settings(changes, {"refusal": reason})
        self._folder.erase([*gone, slot])

    @exclusive
    def release(self) -> None:
        """The server has said, signed, that it knows this client no longer: what was to be deleted
        is gone, at once.

        No receipt can come, and none is needed. Other samples stay until they are forgotten here,
        or the client leaves.
        """
        slots = [row[0] for row in self._database.rows("SELECT slot FROM compositions")]
        settings = {"gone": "1", "refusal": "", **({"left": "1"} if self._is_leaving() else {})}
        with self._database.transaction() as changes:
            gone = states.release(changes)
            changes.run("UPDATE orders SET answered = 1 WHERE answered = 0")
            changes.run("DELETE FROM compositions")
            put_settings(changes, settings)
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

    def _audits(self, sequence: int) -> list[list[Any]]:
        """The answers to audits in a request, as they are sealed."""
        ((slot, sealed),) = self._database.rows(
            "SELECT slot, sealed FROM compositions WHERE sequence = ?", (sequence,)
        )
        audits: list[list[Any]] = self._content(sequence, slot, sealed)["audits"]
        return audits

    def _content(self, sequence: int, slot: int, sealed: bytes) -> dict[str, Any]:
        content: dict[str, Any] = canonical.decode(
            self._folder.vault.unseal(slot, sealed, _context(sequence)), "a composed request"
        )
        return content


def _statistics_of(part: Part | None) -> Statistics | None:
    return part.statistics if isinstance(part, GramPart) else None


def _answer(changes: Database, order: str, sequence: int, *, disclosed: bool) -> None:
    """Let a request answer an order; how many samples it deletes for it may be undisclosed."""
    query = (
        "SELECT count(*) FROM samples WHERE order_id = ? AND sequence = ? AND state = 'deleting'"
    )
    count = changes.value(query, (order, sequence)) if disclosed else UNDISCLOSED
    changes.run("UPDATE orders SET sequence = ?, found = ? WHERE id = ?", (sequence, count, order))


def _context(sequence: int) -> bytes:
    return f"composition:{sequence}".encode("ascii")
