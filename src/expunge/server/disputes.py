"""Sums that were false, or whose clients stay silent: what the server decides about them, by
entries of the log, and what it keeps for the arbiter.

Law: every decision is an entry of the log and a change of what may be summed up next, both or
neither, and by the rules of `expunge.secagg.unmasking`, which clients hold the server to. Openings
are sealed for the arbiter by their clients; the server cannot read them, and destroys them when the
dispute is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from expunge.crypto import Envelope, canonical
from expunge.errors import EvidenceError, FormatError, RefusedError, StoreError
from expunge.evidence.log import EntryKind, read_entry
from expunge.kinds import VoidReason
from expunge.ridge.spec import Aggregation
from expunge.secagg import Opening, length
from expunge.secagg.arbitration import (
    Dispute,
    RoundRecords,
    Verdict,
    parts_json,
    parts_of,
    signed_json,
    spec_of_round,
)
from expunge.secagg.messages import read_client_message
from expunge.secagg.unmasking import Decision, Part, remaining, rows, unexplained
from expunge.server.state import ServerState
from expunge.server.storage.tables import Attempt, DisputeRecord, OpeningRecord
from expunge.wire.refusals import malformed
from expunge.wire.schema import time_text

_ENTRY_BYTES = 16  # of statistics
_MORE_BYTES = 1 << 16  # headers, keys and counts of an opening
_GRACE_PART = 4  # of the time that the rules allow, all have this part after nobody came

_GRACE_NOTES = 16  # times in the grace, at most, it is noted that a client has come


@dataclass(frozen=True)
class Waiting:
    """Parts that are to be summed up together, or are in dispute, and since when."""

    aggregation: str
    parts: frozenset[Part]
    since: int
    clock: int  # the same by the clock of then, which may have been behind
    disputed: bool
    exposed: frozenset[Part] = frozenset()  # when their clients were asked

    def since_by(self, clock: int) -> int:
        """Since when they wait, for whoever has this clock. If that is yet to come, the clock was
        ahead before, or is behind now: nobody knows, so it is by the clock of then, until this one
        has passed it.
        """
        return self.since if self.since <= clock else min(self.clock, clock)


class Disputes:
    """What becomes of false sums, and of sums that some of their clients do not repeat."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._shown: set[Part] = set()  # a cache of the log, up to here:
        self._read = 0

    @property
    def _grace(self) -> int:
        """Seconds in which all can come back when one does, or the server; on a schedule, they
        come in windows.
        """
        return max(self.rules.set_aside_after // _GRACE_PART, 2 * self.rules.every)

    @property
    def _absence(self) -> int:
        """Seconds for which a client that comes again and again may be away in between."""
        return max(self.rules.set_aside_after // 2, 2 * self.rules.every)

    # -- what there is -----------------------------------------------------------------------------

    def waiting(self) -> list[Waiting]:
        """All that clients have been asked to sum up, however often, and that was not applied."""
        waiting: dict[frozenset[Part], Waiting] = {}
        for attempt in self.tried():
            waiting.setdefault(attempt.parts, attempt)  # the first one: since then they wait
        return list(waiting.values())

    def tried(self) -> list[Waiting]:
        """Each time that clients were asked to sum something up, in order."""
        attempts: dict[str, list[Attempt]] = {}
        for attempt in self._state.storage.rounds.attempts():
            attempts.setdefault(attempt.aggregation, []).append(attempt)
        disputed = {record.aggregation for record in self._state.storage.rounds.disputes()}
        return [
            Waiting(
                aggregation,
                frozenset((one.client, one.sequence) for one in members),
                members[0].since,
                members[0].clock,
                aggregation in disputed,
                frozenset((one.client, one.sequence) for one in members if one.exposed),
            )
            for aggregation, members in attempts.items()
        ]

    def disputed(self) -> list[frozenset[Part]]:
        """The sums that are in dispute."""
        return [waiting.parts for waiting in self.waiting() if waiting.disputed]

    def shown(self) -> frozenset[Part]:
        """The parts that were excluded: others are not hidden among them."""
        log = self._state.log
        if self._read == 0:
            entries = self._entries("excluded")
        else:
            entries = [read_entry(log.entry(position)) for position in range(self._read, log.size)]
        self._read = log.size
        self._shown |= {
            (member["client"], member["sequence"])
            for entry in entries
            if entry["kind"] == "excluded"
            for member in entry["clients"]
            if member["client"] in entry["excluded"]
        }
        return frozenset(self._shown)

    def _entries(self, *kinds: EntryKind) -> list[dict[str, Any]]:
        """The entries of these kinds, in the order of the log."""
        search = self._state.storage.log.search
        positions = sorted(position for kind in kinds for position in search({"kind": kind}))
        return [read_entry(self._state.log.entry(position)) for position in positions]

    def is_accepted(self, parts: Collection[Part]) -> bool:
        """Whether by a verdict this sum may leave no head."""
        return {
            (one.client, one.sequence)
            for one in self._state.storage.rounds.attempts()
            if one.accepted
        } >= set(parts)

    # -- a false sum -------------------------------------------------------------------------------

    def void(
        self,
        opening: Opening,
        members: Sequence[tuple[str, int, str]],
        reason: VoidReason,
        records: RoundRecords,
        agreed: Mapping[str, bytes],
    ) -> None:
        """The sum of these clients, each with its number and the digest of its join, was false: its
        rows are summed up next, or its clients open their parts.

        `agreed` are the signatures of those that agreed to it.
        """
        state, parts = self._state, frozenset(member[:2] for member in members)
        with state.lock, state.changing() as now:
            decision = Decision(
                "voided",
                opening.round,
                parts,
                signers=frozenset(agreed) - records.exposed,
                size=len(records.names),
                unexplained=unexplained(self._entries("voided", "judged", "excluded", "restored")),
            )
            cut = rows(decision, self.rules, self._voided())
            listed = [
                dict(zip(("client", "sequence", "request"), one, strict=True)) for one in members
            ]
            state.append(
                "voided",
                now,
                aggregation=opening.round,
                clients=listed,
                reason=reason,
                roster=records.digest,
                size=decision.size,
                agreed={name: signature.hex() for name, signature in agreed.items()},
            )
            self._drop(parts)
            exposed = frozenset(part for part in parts if part[0] in records.exposed)
            if len(cut) > 1:
                for index, row in enumerate(cut):
                    self.ask_for(_id_of(opening.round, str(index)), row, now, exposed)
                return
            self.ask_for(opening.round, parts, now, exposed)
            (slot,) = state.vault.new()
            text = canonical.encode(records.to_json())
            state.storage.rounds.dispute(DisputeRecord(opening.round, reason, slot, text))

    def _voided(self) -> list[frozenset[Part]]:
        """The sums that were false before."""
        return [parts_of(entry["clients"]) for entry in self._entries("voided")]

    @property
    def rules(self) -> Aggregation:
        """The federation's; RefusedError if it has none."""
        rules = self._state.spec.aggregation
        if rules is None:
            raise RefusedError("not-allowed", "this federation does not use secure aggregation")
        return rules

    def ask_for(
        self,
        aggregation: str,
        parts: Iterable[Part],
        now: int,
        exposed: Set[Part],
        *,
        accepted: bool = False,
    ) -> None:
        """Note, within a transaction, that the sum of these parts is asked for from now on, and
        which of them hide nobody in it.
        """
        clock = self._state.by_clock()
        self._state.storage.rounds.attempt(
            Attempt(aggregation, *part, now, int(accepted), int(part in exposed), clock)
            for part in sorted(parts)
        )

    def _drop(self, parts: frozenset[Part]) -> None:
        same = {tried.aggregation for tried in self.tried() if tried.parts == parts}
        self._state.storage.rounds.drop_attempts(same)

    def supersede(self, parts: Collection[Part]) -> None:
        """A part that waits alone, since it was excluded, is asked for in another sum; within a
        transaction.
        """
        alone = {
            tried.aggregation
            for tried in self.tried()
            if len(tried.parts) == 1 and tried.parts <= set(parts)
        }
        self._state.storage.rounds.drop_attempts(alone)

    def open(self, data: bytes | memoryview) -> None:
        """Keep what a client has opened for the arbiter; the same again changes nothing."""
        with malformed():
            message = read_client_message(data)
        state, client, header = self._state, message.client, message.header
        most = 2 * (_ENTRY_BYTES * length(state.spec)) + _MORE_BYTES
        if len(data) > most:
            raise RefusedError(
                "too-large", f"an opening under this spec has at most {most} bytes, not {len(data)}"
            )
        with state.lock:
            record = self._known(header["round"])
            if record is None:
                raise RefusedError(
                    "wrong-round", "the sum whose part is opened is not in dispute: sync"
                )
            is_part = (client, header["sequence"]) in self._parts(record)
            if not is_part or header["roster"] != _records(record).digest:
                raise RefusedError(
                    "wrong-round", f"{client} opens a part of another sum than the one in dispute"
                )
            if state.storage.rounds.opening(record.aggregation, client) is not None:
                return
            with state.changing() as now:
                opened = len(state.storage.rounds.opened(record.aggregation))
                parts = len(self._parts(record))
                if opened == 0 or 2 * opened <= parts < 2 * (opened + 1):
                    self._count_from(record, now)
                sealed = state.vault.seal(
                    record.slot, bytes(data), _context(record.aggregation, client)
                )
                state.storage.rounds.open(OpeningRecord(record.aggregation, client, sealed))

    def _count_from(self, record: DisputeRecord, now: int) -> None:
        """The first one opens its part, or so many that most have, and others are waited for from
        now on: before, all or most may have been away.
        """
        waiting, table = self._waiting(record), self._state.storage.rounds
        names = table.opened(record.aggregation)
        openings = [table.opening(record.aggregation, name) for name in names]
        table.drop_attempts({record.aggregation})
        self.ask_for(record.aggregation, waiting.parts, now, waiting.exposed)
        table.dispute(record)
        for opening in filter(None, openings):
            table.open(opening)

    def _known(self, aggregation: str) -> DisputeRecord | None:
        records = self._state.storage.rounds.disputes()
        return next((one for one in records if one.aggregation == aggregation), None)

    def _waiting(self, record: DisputeRecord) -> Waiting:
        """A sum in dispute."""
        return next(one for one in self.waiting() if one.aggregation == record.aggregation)

    def _parts(self, record: DisputeRecord) -> frozenset[Part]:
        return self._waiting(record).parts

    def _record(self, aggregation: str) -> DisputeRecord:
        record = self._known(aggregation)
        if record is None:
            raise RefusedError(
                "not-found",
                "no such sum is in dispute, or not any more: ask for the list of disputes",
            )
        return record

    # -- what the arbiter needs, and says ----------------------------------------------------------

    def listed(self) -> list[dict[str, Any]]:
        """Every dispute: whose sum, who has opened its part, and until when the others may."""
        table, limit = self._state.storage.rounds, self.rules.set_aside_after
        since = {waiting.aggregation: waiting for waiting in self.waiting()}
        return [
            {
                "aggregation": record.aggregation,
                "reason": record.reason,
                "since": time_text(since[record.aggregation].since),
                "until": time_text(since[record.aggregation].since + limit),
                "clients": sorted(client for client, _ in since[record.aggregation].parts),
                "opened": table.opened(record.aggregation),
                "arbiter": bool(self.rules.arbiter),
            }
            for record in table.disputes()
            if record.aggregation in since
        ]

    def show(self, aggregation: str) -> dict[str, Any]:
        """What the arbiter gets, without the openings, and who has opened its part."""
        state, record = self._state, self._record(aggregation)
        records, parts = _records(record), self._parts(record)
        keys = {name: state.actor(name, "client").key for name in records.names}
        spec = spec_of_round(state.spec, records.labels_digest)
        dispute = Dispute(spec, state.federation, record.reason, parts, records, keys)
        return {"dispute": dispute.to_json(), "opened": state.storage.rounds.opened(aggregation)}

    def opening(self, aggregation: str, client: str) -> bytes:
        """What a client has opened, as it sealed it for the arbiter."""
        record, kept = (
            self._record(aggregation),
            self._state.storage.rounds.opening(aggregation, client),
        )
        if kept is None:
            raise RefusedError("not-found", f"{client} has not opened its part of that sum")
        return self._state.vault.unseal(record.slot, kept.sealed, _context(aggregation, client))

    def judge(self, now: int, value: object) -> dict[str, Any]:
        """Act on a verdict: those whose parts were false are barred, the others go on.

        Within a transaction. RefusedError unless the arbiter signed it, about a sum in dispute.
        """
        state = self._state
        try:
            envelope = Envelope.from_json(value, "verdict")
            verdict = Verdict.read(envelope, self.rules.arbiter)
        except (EvidenceError, FormatError) as problem:
            reason = f"this is no verdict of the arbiter: {problem}"
            raise RefusedError("not-allowed", reason) from problem
        record = self._record(verdict.aggregation)
        roster, waiting = _records(record).digest, self._waiting(record)
        parts = waiting.parts
        if (verdict.federation, verdict.roster, verdict.parts) != (
            state.federation,
            roster,
            parts,
        ):
            raise RefusedError("not-allowed", "the verdict is about another sum than the one here")
        if not verdict.false and record.reason != "headless":
            what = "unmasked" if record.reason == "irrecoverable" else "applied"
            raise RefusedError(
                "not-allowed",
                f"the verdict finds nobody false, but the sum cannot be {what}: "
                "it must name whose part is left out (expunge arbiter judge --false)",
            )
        state.append(
            "judged",
            now,
            aggregation=verdict.aggregation,
            verdict=envelope.to_json(),
            **self._masked_by(record, verdict.false),
        )
        good = frozenset(part for part in parts if part[0] not in verdict.false)
        state.storage.rounds.drop_attempts({verdict.aggregation})
        following = _id_of(verdict.aggregation, "judged")
        self.ask_for(following, good, now, waiting.exposed, accepted=not verdict.false)
        for name in verdict.false:
            actor = state.actor(name, "client")
            if actor.status != "gone":
                state.storage.actors.put(replace(actor, status="barred"))
        return {"aggregation": verdict.aggregation, "false": dict(verdict.false)}

    def _masked_by(self, record: DisputeRecord, false: Collection[str]) -> dict[str, Any]:
        """For the entry of a verdict: what those found false have signed to have sent, as far as
        they have not agreed to the sum. Otherwise clients would not know that they were in it.
        """
        agreed = {
            name
            for entry in self._entries("voided")
            if entry["aggregation"] == record.aggregation
            for name in entry["agreed"]
        }
        silent = sorted(set(false) - agreed)
        if not silent:
            return {}
        masked = _records(record).masked
        return {"version": 2, "masked": signed_json({name: masked[name] for name in silent})}

    # -- silence -----------------------------------------------------------------------------------

    def exclude_unopened(self) -> None:
        """Go on without those that have not opened their parts of a false sum in time."""
        with self._state.lock:
            for waiting in self._overdue():
                if waiting.disputed:
                    opened = self._state.storage.rounds.opened(waiting.aggregation)
                    # A liar that opens its part first must not exclude others that are away.
                    if 2 * len(opened) > len(waiting.parts):
                        self._exclude(
                            waiting, {client for client, _ in waiting.parts}.difference(opened)
                        )

    def exclude_absent(self, present: Set[Part], refused: Collection[str] = ()) -> None:
        """Go on without those that have not come, in time, to repeat a sum with the parts that are
        present, or whose joins are refused. Who has come with another request has not come for it.
        """
        with self._state.lock:
            for waiting in self._overdue():
                if not waiting.disputed and not waiting.parts.isdisjoint(present):
                    absent = {client for client, _ in waiting.parts - present}
                    spared = self._spared(waiting).difference(refused)
                    self._exclude(waiting, absent.difference(spared))

    def _spared(self, waiting: Waiting) -> set[str]:
        """Who has synced within the time that others wait: it need not have met them yet. After
        twice that time, only who has joined a round within it: others sync, and join nothing.
        """
        now, actors = self._state.by_clock(), self._state.storage.actors.all()
        before = now - self.rules.set_aside_after
        if waiting.since_by(now) + self.rules.set_aside_after <= before:
            return {actor.name for actor in actors if before < actor.joined <= now}
        return {actor.name for actor in actors if before < (actor.seen or 0) <= now}

    def note_turn(self, client: str, joined: int | None = None) -> None:
        """A client whose sum waits speaks in a round, or has joined one with this number."""
        state = self._state
        with state.lock:
            waiting = [one.parts for one in self.waiting() if client in dict(one.parts)]
            if not waiting:
                return
            joins = any((client, joined) in parts for parts in waiting)
            actor, now = state.actor(client, "client"), state.by_clock()
            is_back = not actor.spoke <= now <= actor.spoke + self._absence
            newest = actor.joined if joins else actor.spoke
            if not is_back and newest <= now <= newest + self._grace // _GRACE_NOTES:
                return
            changed = replace(
                actor,
                spoke=now,
                present=now if is_back else actor.present,
                joined=now if joins else actor.joined,
            )
            # What cannot be noted delays exclusions, and nothing else.
            with suppress(StoreError, OSError), state.changing():
                state.storage.actors.put(changed)

    def exclude_silent(self, silent: Set[Part]) -> None:
        """Go on without those that came to repeat a sum, and then left its round again; unless most
        have: then it was not they that spoilt the round.
        """
        with self._state.lock:
            gone = frozenset(self._state.clients("gone", "barred"))
            for waiting in self._overdue():
                left_again, all_parts = waiting.parts & silent, remaining(waiting.parts, gone)
                if not waiting.disputed and 2 * len(left_again) <= len(all_parts):
                    self._exclude(waiting, {client for client, _ in left_again})

    def _overdue(self) -> list[Waiting]:
        """What has waited for longer than the rules allow, and for which some of its clients have
        come again and again: before, all or the server may have been away.
        """
        now, waiting = self._state.by_clock(), self.waiting()
        if any(one.clock > now for one in waiting):
            # The clock was ahead. What cannot be noted delays exclusions, and nothing else.
            with suppress(StoreError, OSError), self._state.changing():
                self._state.storage.rounds.set_back(now)
        before, present = now - self.rules.set_aside_after, self._present(now)
        return [
            one
            for one in waiting
            if 0 < one.since_by(now) <= before and not present.isdisjoint(dict(one.parts))
        ]

    def _present(self, now: int) -> set[str]:
        """The clients that have come for their sums again and again, for long enough."""
        return {
            actor.name
            for actor in self._state.storage.actors.all()
            if 0 < actor.present <= now - self._grace and now - self._absence <= actor.spoke <= now
        }

    def _was_false(self, parts: frozenset[Part]) -> bool:
        """Whether these are the parts of a false sum, or of a row of one."""
        return any(parts <= voided for voided in self._voided())

    def _exclude(self, waiting: Waiting, names: set[str]) -> None:
        """Unless too few would be left. Few that are left of a false sum go on with others."""
        state, aggregation = self._state, waiting.aggregation
        gone = state.clients("gone")
        out, left = names.difference(gone), remaining(waiting.parts, {*names, *gone})
        if not out or not left:
            return
        if len(left) < self.rules.fewest and not self._was_false(waiting.parts):
            return
        with state.changing() as now:
            state.append(
                "excluded",
                now,
                aggregation=aggregation,
                clients=parts_json(waiting.parts),
                excluded=sorted(out),
            )
            self._drop(waiting.parts)
            rest = frozenset(part for part in waiting.parts if part[0] not in out)
            self.ask_for(_id_of(aggregation, "excluded"), rest, now, waiting.exposed)
            for part in sorted(waiting.parts - rest):
                self.ask_for(_id_of(aggregation, part[0]), [part], now, {part})


def _id_of(aggregation: str, what: str) -> str:
    """The id of what is summed up after a decision about a round."""
    return hashlib.sha256(f"{aggregation} {what}".encode()).hexdigest()[:32]


def _records(record: DisputeRecord) -> RoundRecords:
    return RoundRecords.from_json(canonical.decode(record.records))


def _context(aggregation: str, client: str) -> bytes:
    return f"opening:{aggregation}:{client}".encode()
