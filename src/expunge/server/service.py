"""The service: every call that the server answers, over any carrier.

Bytes in, bytes out; each answer is signed, each refusal a RefusedError that changed nothing. It is
a carrier (`expunge.wire.carrier`) for code in its process; every other carrier calls it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from expunge.crypto import Envelope, PublicKey, canonical
from expunge.errors import EvidenceError, RefusedError, StoreError
from expunge.evidence import published_head
from expunge.evidence.audit_result import result_content
from expunge.server.audits import Audits
from expunge.server.bundles import certificate
from expunge.server.clock import Clock, Report, SteadyClock
from expunge.server.clock_watch import ClockWatch
from expunge.server.commands import Commands, enrol
from expunge.server.ledger import Progress, no_progress
from expunge.server.maintenance import Maintenance
from expunge.server.orders import Orders
from expunge.server.requests import Offer, Requests
from expunge.server.state import ServerState, Settings
from expunge.server.storage.folder import OpenStorage, ServerFolder
from expunge.server.storage.sqlite import open_storage
from expunge.server.storage.tables import AnswerRecord
from expunge.server.writer import Writer
from expunge.storage.sqlite import Hook, no_hook
from expunge.wire import payloads
from expunge.wire.carrier import answers_bytes
from expunge.wire.refusals import cause_of, malformed
from expunge.wire.schema import time_text

if TYPE_CHECKING:
    from expunge.server.secagg import RoundStatus, SecureAggregation

_P = ParamSpec("_P")
_T = TypeVar("_T")


def no_report(_: str, __: BaseException | None) -> None:
    """Default hook: does nothing."""


def _explained(
    method: Callable[Concatenate[Service, _P], _T],
) -> Callable[Concatenate[Service, _P], _T]:
    """The method, whose errors say so if they come of a damaged store."""

    @wraps(method)
    def explained(self: Service, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        with self.state.storage.explaining():
            return method(self, *arguments, **options)

    return explained


class Service:
    """A server at work on its folder. Close it; a crash instead loses nothing."""

    def __init__(
        self,
        folder: ServerFolder,
        settings: Settings,
        clock: Clock,
        report: Report,
        *,
        upkeep: bool,
        threads: bool = True,
        seconds: Clock = time.monotonic,
        schedule: Clock | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._state = state = ServerState(
            folder, settings, clock, threads=threads, seconds=seconds, progress=progress
        )
        self._report = report
        if not state.record.salt:  # the last thing that is written by founding or restoring
            raise StoreError(
                f"the server in {folder.path} was never finished: remove the folder and begin again"
            )
        self._orders, self._audits = Orders(state), Audits(state)
        self.clocks = ClockWatch(state, report)
        self.upkeep = Maintenance(state, self._audits, report, seconds, self.clocks.look)
        self._requests = Requests(state, self._orders, self._audits)
        self._commands = Commands(
            state,
            self._orders,
            self._audits,
            self.upkeep,
            clocks=self.clocks,
            culprits=lambda: frozenset() if self.rounds is None else self.rounds.culprits,
        )
        self._queue = Writer(self._requests.run, group_commit=settings.group_commit, thread=threads)
        self.rounds = self._rounds(seconds, schedule) if state.spec.is_masked else None
        self._seconds = seconds
        self._published: tuple[int, bytes, str] | None = None  # a cache: version, file, digest
        if upkeep:
            self.upkeep.start()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        settings: Settings | None = None,
        mirrors: Sequence[Path] = (),
        clock: Clock | None = None,
        seconds: Clock = time.monotonic,
        schedule: Clock | None = None,
        report: Report = no_report,
        hook: Hook = no_hook,
        upkeep: bool = True,
        threads: bool = True,
        timeout: float = 0.0,
        storage: OpenStorage = open_storage,
        progress: Progress = no_progress,
    ) -> Self:
        """The server in this folder, as it was left.

        `clock` says what time it is; None for this machine's, whose jumps ahead are not followed
        (`SteadyClock`). `seconds` says how long something takes. Rounds on a schedule
        begin by `schedule`, or by `clock` if that is not given. Without `upkeep`, erasing at rest
        in time is the caller's (`upkeep.run_due`); without `threads`, whatever else is done beside
        the callers is done by them. `progress` is called as the journal is read.
        """
        folder = ServerFolder.open(path, mirrors, hook, timeout, storage)
        for warning in folder.vault.warnings:
            report(warning, None)
        try:
            with folder.storage.explaining():
                return cls(
                    folder,
                    settings or Settings(),
                    clock or SteadyClock(report),
                    report,
                    upkeep=upkeep,
                    threads=threads,
                    seconds=seconds,
                    schedule=schedule,
                    progress=progress,
                )
        except BaseException:
            folder.close()
            raise

    def _rounds(self, seconds: Clock, schedule: Clock | None) -> SecureAggregation:
        """Secure aggregation, which other federations do not load."""
        from expunge.server.secagg import SecureAggregation  # noqa: PLC0415
        from expunge.server.secagg_outcomes import Outcomes  # noqa: PLC0415

        outcomes = Outcomes(self._state, self._orders, self._audits, self.upkeep)
        return SecureAggregation(self._state, self._queue, outcomes, seconds, schedule)

    # -- who we are --------------------------------------------------------------------------------

    @property
    def state(self) -> ServerState:
        """For carriers that show the state; changes go through the methods here."""
        return self._state

    @_explained
    def status(self) -> dict[str, Any]:
        """The federation's current state; nothing in it is personal."""
        return self._commands.status() | {"waiting": len(self._queue)}

    @_explained
    def federation(self) -> bytes:
        """The envelope `federation`."""
        state = self._state
        with state.lock:
            content = {
                "checkpoint": state.checkpoint(state.now()).to_json(),
                "federation": state.federation,
                "limits": {
                    "largest_request": state.settings.largest_request,
                    "erase_within": state.settings.erase_within,
                },
                "rotations": [envelope.to_json() for envelope in state.rotations()],
                "server": state.folder.key.public.text,
                "spec": state.spec.to_dict(),
            }
            return payloads.sign("federation", content, state.folder.key)

    # -- enrolment ---------------------------------------------------------------------------------

    @answers_bytes
    def enrol(self, data: bytes) -> bytes:
        """Take a new actor in, by a one-time token; the same enrolment again is answered again."""
        envelope, content = _overheard("enrolment", data)
        self._state.require_federation(content["federation"])
        key = PublicKey.from_text(content["key"])
        _verify(envelope, key, "the key that is to be enrolled")
        try:
            answer: bytes = self._queue.do(lambda: enrol(self._state, self._audits, content, key))
        except RefusedError:
            raise
        except Exception as problem:
            reason = (
                f"the server could not store the enrolment ({cause_of(problem)}): "
                "offer the same one "
                "again later"
            )
            raise RefusedError("storage", reason) from problem
        return answer

    # -- clients -----------------------------------------------------------------------------------

    @answers_bytes
    def take(self, data: bytes | memoryview) -> Offer:
        """Take a client's request in; its `answer` gets the receipt, or the refusal, and `seconds`
        where the time went.
        """
        offer = self._requests.take(data)
        self._queue.offer(offer)
        return offer

    def offer(self, data: bytes | memoryview) -> Future[bytes]:
        """The same, for those who only wait for the answer."""
        return self.take(data).answer

    def request(self, data: bytes) -> bytes:
        """A client's request, answered by its receipt."""
        answer = self.offer(data)
        self.catch_up()
        return answer.result()

    def catch_up(self) -> None:
        """Apply what is waiting, if no thread does."""
        self._queue.catch_up()

    def aggregate(self, data: bytes) -> bytes:
        """A client's turn in a round of secure aggregation, answered with the state of the round
        for it; one that only asks may wait until something has changed.
        """
        answer = self.turn(data)
        end = self._seconds() + answer.wait
        while answer.waiting and (left := end - self._seconds()) > 0.0:
            change = self.change_after(answer.version)
            wait([change], timeout=min(left, answer.due))
            change.cancel()
            answer = self.turn(data)
        return answer.data

    @answers_bytes
    def turn(self, data: bytes | memoryview) -> RoundStatus:
        """The same, answered at once."""
        return self._require_rounds().turn(data)

    def change_after(self, version: int) -> Future[None]:
        """Done as soon as anything has changed since that version of the rounds."""
        return self._require_rounds().change_after(version)

    def _require_rounds(self) -> SecureAggregation:
        if self.rounds is None:
            raise RefusedError(
                "not-allowed", "this federation does not use secure aggregation: send requests"
            )
        return self.rounds

    @_explained
    @answers_bytes
    def sync(self, data: bytes) -> bytes:
        """What is new for an actor."""
        envelope, content = _overheard("question", data)
        self._state.require_federation(content["federation"])
        state, name = self._state, content["actor"]
        with state.lock:
            actor = state.actor(name)
            _verify(envelope, actor.public_key, f"the key that {name} enrolled")
            now, is_client = state.now(), actor.role == "client"
            checkpoint = state.checkpoint(now)
            seen = min(content["size"], checkpoint.size)
            answer = {
                "actor": name,
                "amendments": [canonical.decode(data) for data in state.storage.amendments.all()],
                "audits": self._audits.waiting(name) if is_client else [],
                "checkpoint": checkpoint.to_json(),
                "consistency": [
                    digest.hex() for digest in state.log.consistency(seen, checkpoint.size)
                ],
                "federation": state.federation,
                "head": state.head.digest if state.head else "",
                "nonce": content["nonce"],
                "orders": self._orders.waiting(name, content.get("after", "")) if is_client else [],
                "rebuild": is_client
                and self.rounds is not None
                and self.rounds.wanted() == "rebuild",
                "rotations": [rotation.to_json() for rotation in state.rotations()],
                "sequence": actor.sequence,
                "spec": state.spec.to_dict(),
                "status": actor.status,
                "time": time_text(now),
            }
            self._note_seen(name)
            return payloads.sign("answer", answer, state.folder.key)

    def _note_seen(self, name: str) -> None:
        """Remember that an actor has synced; if that cannot be written, the caller is answered all
        the same.
        """
        try:
            state = self._state
            with state.changing():
                state.storage.actors.put(replace(state.actor(name), seen=state.by_clock()))
        except (StoreError, OSError) as problem:
            self._report("the time of a sync could not be noted", problem)

    # -- operators and officers --------------------------------------------------------------------

    @_explained
    @answers_bytes
    def command(self, data: bytes) -> bytes:
        """A command, applied once by its number, or a question (number 0)."""
        envelope, content = _overheard("command", data)
        self._state.require_federation(content["federation"])
        question = content["sequence"] == 0
        roles = self._commands.roles(content["action"], question=question)
        actor = self._state.actor(content["actor"], *roles)
        _verify(envelope, actor.public_key, f"the key that {content['actor']} enrolled")
        if question:
            value = self._commands.ask(content["action"], content["arguments"])
            return self._result(content, value, None, self._state.now())
        if content["sequence"] == actor.sequence + 1:
            try:
                self._commands.anticipate(content["action"])
            except Exception as problem:
                raise _not_carried_out(problem) from problem
        answer: bytes = self._queue.do(lambda: self._command(data, envelope, content))
        return answer

    def _command(self, data: bytes, envelope: Envelope, content: dict[str, Any]) -> bytes:
        state, name, sequence = self._state, content["actor"], content["sequence"]
        digest = hashlib.sha256(data).hexdigest()
        record = state.answer_of(name, sequence)
        if record is not None and record.request == digest:
            return record.answer
        actor = state.actor(name)
        if sequence != actor.sequence + 1:
            reason = (
                f"command number {sequence} was offered where number {actor.sequence + 1} is "
                "expected"
            )
            raise RefusedError(
                "sequence-gap" if sequence > actor.sequence else "sequence-reused",
                reason,
                expected=actor.sequence + 1,
            )
        try:
            return self._carry_out(envelope, content, digest)
        except RefusedError:
            raise
        except Exception as problem:
            record = state.answer_of(name, sequence)
            if record is not None:
                return record.answer
            raise _not_carried_out(problem) from problem

    def _carry_out(self, envelope: Envelope, content: dict[str, Any], digest: str) -> bytes:
        state, name, sequence = self._state, content["actor"], content["sequence"]
        action, arguments = content["action"], content["arguments"]
        if action == "backup":  # it is as large as the store, and can wait
            state.room.require()
        else:
            state.room.use()
        with self._commands.alone(action):
            with state.lock:
                state.require_sound()
            self._commands.prepare(action, arguments)
            with state.mending():
                with state.changing() as now:
                    value, summary = self._commands.do(now, action, arguments, envelope)
                    now = state.record.time  # noqa: PLW2901 - a correction goes back to the clock's
                    entry = {"actor": name, "sequence": sequence, "command": digest}
                    index = state.append("commanded", now, **entry, action=action, summary=summary)
                    answer = self._result(content, value, index, now)
                    state.storage.actors.put(replace(state.actor(name), sequence=sequence))
                    state.storage.answers.add(AnswerRecord(name, sequence, digest, answer))
                    state.storage.answers.prune(name, sequence)
                state.settle_head()
            self._commands.finish(action)
        return answer

    def _result(self, content: dict[str, Any], value: Any, index: int | None, now: int) -> bytes:
        state = self._state
        checkpoint = None if index is None else state.checkpoint(now)
        logged = None if index is None or checkpoint is None else state.logged(index, checkpoint)
        answer = result_content(
            federation=state.federation,
            server=state.server_id,
            actor=content["actor"],
            sequence=content["sequence"],
            action=content["action"],
            # A command's answer is kept: with the nonce, its digest in the log would tell what was
            # commanded.
            result={"nonce": content["nonce"] if index is None else "", "value": value},
            time=time_text(now),
            logged=logged,
            checkpoint=checkpoint,
        )
        return state.sign("result", answer).to_bytes()

    # -- evidence ----------------------------------------------------------------------------------

    def head_digest(self) -> str:
        """The digest of the current head; empty if there is none."""
        return self._state.head_digest

    @_explained
    def head(self, known: str | None = None) -> bytes | None:
        """The published head with its certificate; None if its digest is `known`."""
        state = self._state
        with state.lock:
            if state.head is not None and state.head.digest == known:
                return None
            if self._published is None or self._published[0] != state.version:
                envelope = certificate(state, self._audits, state.checkpoint(state.now()))
                digest = state.head.digest if state.head is not None else ""
                self._published = state.version, published_head.write(envelope, state.head), digest  # type: ignore[arg-type]
            return self._published[1]

    @_explained
    def checkpoint(self) -> bytes:
        """The envelope `checkpoint`."""
        with self._state.lock:
            return self._state.sign(
                "checkpoint", self._state.checkpoint(self._state.now()).to_json()
            ).to_bytes()

    def entries(self, start: int, end: int) -> list[bytes]:
        """Entries of the audit log."""
        return self._state.log.entries(start, end)

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """An inclusion proof."""
        return self._state.log.inclusion(index, size)

    def consistency(self, first: int, second: int) -> list[bytes]:
        """A consistency proof."""
        return self._state.log.consistency(first, second)

    def close(self, *, fold: bool = False) -> None:
        """Finish what has begun and release the folder; with `fold`, erase at rest first."""
        self._queue.close()
        self.upkeep.stop()
        try:
            if fold:
                self.upkeep.finish_audits()
                self.upkeep.fold()
        finally:
            self._state.close()


def _not_carried_out(problem: Exception) -> RefusedError:
    return RefusedError(
        "storage",
        f"the command could not be carried out ({cause_of(problem)}): nothing was changed",
    )


def _overheard(kind: payloads.Kind, data: bytes) -> tuple[Envelope, dict[str, Any]]:
    with malformed():
        return payloads.open_unverified(kind, data)


def _verify(envelope: Envelope, key: PublicKey, whose: str) -> None:
    try:
        envelope.verify(key)
    except EvidenceError as problem:
        raise RefusedError("bad-signature", f"this is not signed by {whose}") from problem
