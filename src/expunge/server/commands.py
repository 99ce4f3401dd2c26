"""What operators and officers may ask for.

Each action returns a value for the one who asked, and a summary for the log.

A summary holds nothing personal: the log is public.

Enrolment: an actor's key is taken in by a one-time token.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from expunge.crypto import Envelope, PublicKey, SigningKey, canonical
from expunge.errors import ExpungeError, FormatError, RefusedError, SpecMismatchError
from expunge.evidence.log import read_entry
from expunge.evidence.rotation import rotate
from expunge.kinds import CLIENT_STATUSES, Role
from expunge.ridge.spec import AMENDABLE, Spec
from expunge.server.audits import Audits
from expunge.server.backup import write_backup
from expunge.server.bundles import bundle
from expunge.server.clock_watch import ClockWatch
from expunge.server.correction import correct_clock
from expunge.server.maintenance import Maintenance
from expunge.server.orders import Orders
from expunge.server.state import ServerState
from expunge.server.storage.tables import Actor, EnrolmentToken
from expunge.wire import payloads, schema
from expunge.wire.schema import UNDISCLOSED, time_text
from expunge.wire.token import secret_digest

if TYPE_CHECKING:
    from expunge.server.disputes import Disputes


def enrol(state: ServerState, audits: Audits, content: dict[str, Any], key: PublicKey) -> bytes:
    """Take a new actor in; the same enrolment again is answered again."""
    name = content["name"]
    try:
        token = secret_digest(schema.nonce(content["token"], "the secret of the token"))
    except FormatError as problem:
        raise RefusedError("bad-token", str(problem)) from problem
    with state.changing() as now:
        actor = state.storage.actors.get(name)
        if actor is not None:
            if (actor.key, actor.token) != (key.text, token):
                raise name_taken(actor, "is enrolled already, with another key or token")
            return _enrolled(state, name, actor.role, key)
        issued = state.storage.tokens.get(token)
        if issued is None or issued.name != name or issued.expires < now:
            raise RefusedError(
                "bad-token",
                (
                    f"the token is not good for {name}: used, expired, or for somebody else. Ask "
                    "for another"
                ),
            )
        role = issued.role
        if role == "client" and content["spec"] != state.spec.data_digest:
            raise RefusedError(
                "wrong-spec",
                f"{name} computes with the data spec {content['spec']!r:.18}…, the federation with "
                f"{state.spec.data_digest[:16]}…: dim, grid, intercept and backbone fingerprint "
                "must be the same",
            )
        holder = state.storage.actors.with_key(key.text)
        if holder is not None:
            raise name_taken(holder, "is enrolled already, with that key: make another")
        state.storage.tokens.remove(token)
        state.storage.actors.put(Actor(name, role, key.text, "active", 0, now, token))
        state.append("enrolled", now, name=name, role=role, key=key.text)
        if role == "client":
            audits.client_joined(name)
    state.version += 1
    return _enrolled(state, name, role, key)


def name_taken(holder: Actor, why: str) -> RefusedError:
    """The refusal of a name or key that is in use, or belonged to a client that is gone: the log
    still speaks of it.
    """
    if holder.status == "gone":
        why = (
            "was a client that has left or was forgotten, and never comes back: enrol by "
            "another name, in a new folder"
        )
    return RefusedError("name-taken", f"{holder.name} {why}")


def _enrolled(state: ServerState, name: str, role: str, key: PublicKey) -> bytes:
    content = {
        "federation": state.federation,
        "key": key.text,
        "log": state.log.size,
        "name": name,
        "role": role,
        "sequence": state.actor(name).sequence,
        "server": state.folder.key.public.text,
        "spec": state.spec.to_dict(),
    }
    return payloads.sign("enrolled", content, state.folder.key)


_LONG = ("clients", "orders", "status")  # answered from the store alone
_FOLDING = ("amend", "forget-client", "fold", "correct-clock")  # before which the journal is folded
_DAY = 86400
_TOKEN_DAYS = 7
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KEY_BYTES = 32

Done = tuple[Any, dict[str, str | int]]
Action = Callable[[int, dict[str, Any], Envelope], Done]


class Commands:
    """The actions by name: commands change something and are logged, questions change nothing."""

    def __init__(
        self,
        state: ServerState,
        orders: Orders,
        audits: Audits,
        upkeep: Maintenance,
        *,
        clocks: ClockWatch,
        culprits: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """`culprits` are the clients that dealt wrong shares, and of which no join is taken."""
        self._state = state
        self._clocks = clocks
        self._culprits = culprits
        self._orders = orders
        self._audits = audits
        self._upkeep = upkeep
        both: tuple[Role, ...] = ("officer", "operator")
        self._commands: dict[str, tuple[tuple[Role, ...], Action]] = {
            "token": (("operator",), self._token),
            "amend": (("operator",), self._amend),
            "forget-client": (("operator",), self._forget_client),
            "rotate-key": (("operator",), self._rotate_key),
            "backup": (("operator",), self._backup),
            "audit": (both, self._audit),
            "fold": (both, self._fold),
            "order": (both, self._order),
            "close-order": (both, self._close_order),
            "judge": (("operator",), self._judge),
            "correct-clock": (("operator",), self._correct_clock),
        }
        self._questions: dict[str, Callable[[dict[str, Any]], Any]] = {
            "status": lambda _: self.status(),
            "clients": self._clients,
            "orders": lambda given: orders.listed(state.now(), given),
            "show-order": lambda given: orders.show(_text(given, "order"), state.now()),
            "bundle": lambda given: bundle(state, orders, audits, _text(given, "order")).to_json(),
            "audits": lambda _: audits.listed(),
            "show-audit": lambda given: audits.show(_text(given, "audit")),
            "disputes": lambda _: self._disputes().listed(),
            "show-dispute": lambda given: self._disputes().show(_text(given, "aggregation")),
            "show-opening": self._opening,
        }

    def roles(self, action: str, *, question: bool) -> tuple[Role, ...]:
        """Who may ask for an action; RefusedError if there is none of that name."""
        if question and action in self._questions:
            return ("officer", "operator")
        if not question and action in self._commands:
            return self._commands[action][0]
        names = sorted(self._questions if question else self._commands)
        raise RefusedError(
            "unknown-action",
            f"there is no {'question' if question else 'command'} {action!r:.40}; known: {names}",
        )

    def ask(self, action: str, arguments: dict[str, Any]) -> Any:
        """Answer a question; changes do not wait for long lists."""
        with nullcontext() if action in _LONG else self._state.lock:
            try:
                return self._questions[action](arguments)
            except FormatError as problem:
                raise RefusedError("malformed", str(problem)) from problem

    def anticipate(self, action: str) -> None:
        """What takes long, and may be done before the turn of a command has come: requests, which
        would wait behind it, go on meanwhile.
        """
        if action in _FOLDING:
            self._upkeep.fold()

    def alone(self, action: str) -> AbstractContextManager[object]:
        """While this is entered, no fold goes on that the command would be in the way of."""
        return self._upkeep.working if action in _FOLDING else nullcontext()

    def prepare(self, action: str, arguments: dict[str, Any]) -> None:
        """What must be done before the transaction of a command."""
        if action in _FOLDING:
            self._upkeep.fold()  # what has come since it was anticipated
        if action == "backup":
            name = arguments.get("name")
            if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
                raise RefusedError(
                    "malformed", f"a backup needs a plain file name, got {name!r:.80}"
                )
            if self._state.storage.log.search({"action": "backup", "summary.file": name}):
                raise RefusedError(
                    "name-taken", f"there is a backup {name} already: choose another name"
                )
            write_backup(self._state.folder, name)

    def do(self, now: int, action: str, arguments: dict[str, Any], envelope: Envelope) -> Done:
        """Carry out a command within a transaction."""
        try:
            return self._commands[action][1](now, arguments, envelope)
        except FormatError as problem:
            raise RefusedError("malformed", str(problem)) from problem

    def finish(self, action: str) -> None:
        """What must be done after the transaction of a command."""
        if action == "rotate-key":
            self._state.folder.adopt_key()
        if action == "forget-client":
            self._upkeep.fold()
        if action in ("close-order", "judge"):
            with self._state.lock:
                self._state.ledger.shred_orphans()
        self._state.version += 1

    # -- commands ----------------------------------------------------------------------------------

    def _token(self, now: int, given: dict[str, Any], _: Envelope) -> Done:
        name, role = (
            schema.name(given.get("name"), "the name"),
            schema.role(given.get("role"), "the role"),
        )
        digest, days = (
            schema.digest(given.get("secret"), "the digest of the secret"),
            given.get("days", _TOKEN_DAYS),
        )
        if isinstance(days, bool) or not isinstance(days, int) or not 0 < days <= 365:
            raise RefusedError("malformed", f"a token is good for 1 to 365 days, got {days!r:.40}")
        actor, tokens = self._state.storage.actors.get(name), self._state.storage.tokens
        if actor is not None:
            raise name_taken(actor, "is enrolled already: choose another name")
        tokens.withdraw(name)
        if tokens.get(digest) is not None:
            raise RefusedError("name-taken", "that secret is another token's: draw a fresh one")
        token = EnrolmentToken(digest, name, role, now + days * _DAY)
        tokens.add(token)
        return {"expires": time_text(token.expires)}, {"name": name, "role": role}

    def _amend(self, now: int, given: dict[str, Any], envelope: Envelope) -> Done:
        state, before = self._state, self._state.spec
        after = _amended(before, given)
        if after == before:
            raise RefusedError(
                "malformed",
                "the amendment changes nothing: give gamma, publication_bits, labels or messages",
            )
        try:
            state.ledger.amend(after)
            digests = state.solved()
        except ExpungeError as problem:
            raise RefusedError(
                "unsolvable", f"the spec cannot be amended so: {problem}"
            ) from problem
        text = canonical.encode(after.to_dict()).decode("ascii")
        state.storage.state.put(replace(state.record, spec=text))
        state.keep_digests(digests)
        actor = envelope.unverified()["actor"]
        index = state.append(
            "amended",
            now,
            spec_before=before.digest,
            spec_after=after.digest,
            actor=actor,
            ledger=digests.ledger,
            head=digests.head,
        )
        content = {
            "command": envelope.to_json(),
            "federation": state.federation,
            "index": index,
            "spec": after.to_dict(),
            "spec_before": before.digest,
            "time": time_text(now),
        }
        state.storage.amendments.add(state.sign("amendment", content).to_bytes())
        # The digest is salted as in the log: this answer is kept, and a plain one would outlive the
        # head.
        return {"spec": after.to_dict(), "head": digests.head}, {"spec": after.digest}

    def _forget_client(self, now: int, given: dict[str, Any], _: Envelope) -> Done:
        state, name = self._state, schema.name(given.get("client"), "the name")
        actor = state.actor(name, "client")
        if actor.status == "gone":
            raise RefusedError("gone", f"{name} is gone already")
        # Of a client that must rejoin, the ledger has nothing.
        is_counted = actor.sequence > 0 and actor.status != "must-rejoin"
        if state.spec.aggregation is not None and is_counted:
            return self._await_rebuild(name, state.spec.aggregation.fewest)
        before, live = state.record.ledger_digest, state.basis().live
        count = state.ledger.delete_client(name)
        digests = state.solved(live.without(name, state.storage.commitments.of(name)))
        state.ledger.write_ledger(state.ledger.solver.statistics, state.storage.journal.last())()
        state.ledger.has_remains = True  # the files of before
        state.storage.files.remove_share(name)
        state.storage.commitments.remove_all(name)
        state.storage.actors.put(replace(actor, status="gone"))
        state.ledger.forget_account(name)
        (slot,) = state.vault.new()
        state.begin_generation(slot, digests)  # so that the salt of those before can be erased
        state.append(
            "forgotten",
            now,
            client=name,
            count=count,
            ledger_before=before,
            ledger_after=digests.ledger,
            head=digests.head,
        )
        self._orders.client_is_gone(name, 0, now)
        self._audits.client_is_gone(name)
        return {"client": name, "count": count}, {"client": name, "count": count}

    def _await_rebuild(self, name: str, fewest: int) -> Done:
        """Under secure aggregation no party knows a single client's share: the others add up theirs
        in a round to come.
        """
        barred = self._state.clients("barred")
        if barred and name not in barred:
            raise RefusedError(
                "not-allowed",
                f"{barred[0]} is barred and would take no part in the round that this needs: "
                f"forget {barred[0]} first",
            )
        left = [client for client in self._state.clients("active") if client != name]
        if len(left) < fewest:
            raise RefusedError(
                "not-allowed",
                f"to forget {name}, the other clients must add up what they hold in a round of "
                "secure aggregation, which needs "
                f"{fewest} of them, and there are {len(left)}: enrol more clients first",
            )
        self._state.storage.rounds.await_rebuild(name)
        self._state.storage.actors.put(replace(self._state.actor(name), status="gone"))
        self._audits.client_is_gone(name)
        return {"client": name, "count": UNDISCLOSED}, {"client": name, "count": UNDISCLOSED}

    def _fold(self, now: int, _given: dict[str, Any], _asked: Envelope) -> Done:
        """Everything before this command has been erased at rest, and the sums of now digested."""
        del now
        state = self._state
        told = {
            "ledger": state.record.ledger_digest,
            "round": state.record.round,
            "samples": state.ledger.solver.count,
        }
        return told, {"round": state.record.round}

    def _rotate_key(self, now: int, _given: dict[str, Any], _asked: Envelope) -> Done:
        state = self._state
        key = SigningKey(state.random(_KEY_BYTES))
        state.folder.prepare_key(key)
        old = state.folder.key
        ids = {"old": old.public.id, "new": key.public.id}
        index = state.append("rotated", now, **ids, key=key.public.text)
        envelope = rotate(state.federation, old, key, time_text(now), index)
        state.storage.rotations.add(envelope.to_bytes())
        state.storage.state.put(replace(state.record, key=key.public.id))
        return {"key": key.public.text, "rotation": envelope.to_json()}, {"key": key.public.id}

    def _backup(self, _now: int, given: dict[str, Any], _asked: Envelope) -> Done:
        return {"file": given["name"]}, {"file": given["name"]}

    def _audit(self, now: int, _given: dict[str, Any], _asked: Envelope) -> Done:
        audit = self._audits.start(now)
        return {"audit": audit}, {"audit": audit}

    def _order(self, now: int, given: dict[str, Any], _: Envelope) -> Done:
        order = self._orders.file(now, given)
        return self._orders.show(order, now), {"order": order}

    def _close_order(self, now: int, given: dict[str, Any], _: Envelope) -> Done:
        order = _text(given, "order")
        self._orders.close(order, now)
        return {"order": order}, {"order": order}

    def _judge(self, now: int, given: dict[str, Any], _: Envelope) -> Done:
        judged = self._disputes().judge(now, given.get("verdict"))
        return judged, {"aggregation": judged["aggregation"]}

    def _correct_clock(self, _now: int, given: dict[str, Any], _: Envelope) -> Done:
        done = correct_clock(self._state, given)
        return done, {"first": done["first"], "ahead": done["ahead"]}

    def _disputes(self) -> Disputes:
        """Of secure aggregation, which other federations do not load."""
        if self._state.spec.aggregation is None:
            raise RefusedError("not-allowed", "this federation does not use secure aggregation")
        from expunge.server.disputes import Disputes  # noqa: PLC0415

        return Disputes(self._state)

    # -- questions ---------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The federation's current state."""
        state, now = self._state, self._state.now()
        return {
            "federation": state.federation,
            "time": time_text(now),
            "solver": state.solver_name,
            "spec": state.spec.digest,
            "samples": state.ledger.solver.count,
            "clients": self._statuses(),
            "round": state.record.round,
            "log": state.log.size,
            "clock": {
                "stamps_ahead": state.stamps_ahead(),
                "jumped_ahead": int(state.clock_ahead()),
                "ahead_of_clients": int(self._clocks.ahead_of_clients()),
            },
            "disk": state.room.problem(),
            "head": state.head_digest,
            "headless": state.headless,
            "journal": state.storage.journal.count(),
            "orders": self._orders.counts(now),
            "audit": self._audits.last(),
            "aggregation": self._aggregation(),
            "key": state.server_id,
        }

    def _aggregation(self) -> dict[str, Any] | None:
        """What the next round of secure aggregation is for: a rebuild or an audit needs all
        clients, a change needs a few. When the next one on a schedule is, and what the last one
        was.
        """
        state = self._state
        if state.spec.aggregation is None:
            return None
        forgetting, auditing = state.storage.rounds.rebuilds(), state.storage.audits.running()
        wanted = "rebuild" if forgetting else "audit" if auditing else "change"
        return {
            "wanted": wanted,
            "forgetting": forgetting,
            "needed": [] if wanted == "change" else state.clients("active"),
            "fewest": state.spec.aggregation.fewest,
            "disputes": self._disputes().listed(),
            "barred": state.clients("barred"),
            "culprits": sorted(self._culprits().intersection(state.clients("active"))),
            "schedule": self._schedule(),
            "last": self._last_round(),
        }

    def _schedule(self) -> dict[str, Any] | None:
        from expunge.secagg.schedule import Schedule  # noqa: PLC0415 - for masked federations only

        schedule, now = Schedule.of(self._state.spec.aggregation), self._state.now()
        if schedule is None:
            return None
        return {
            "every": schedule.every,
            "window": schedule.window,
            "is_open": schedule.open_at(now) is not None,
            "next": time_text(schedule.following(now)),
        }

    def _last_round(self) -> dict[str, Any] | None:
        """The last round of changes, as the log has it."""
        membership = self._state.storage.rounds.last()
        if membership is None:
            return None
        entry = read_entry(self._state.log.entry(membership.position))
        numbers = {name: entry[name] for name in ("round", "time", "added", "deleted")}
        return numbers | {"clients": len(entry["clients"])}

    def _opening(self, given: dict[str, Any]) -> str:
        data = self._disputes().opening(_text(given, "aggregation"), _text(given, "client"))
        return base64.b64encode(data).decode("ascii")

    def _statuses(self) -> dict[str, int]:
        actors = self._state.storage.actors.all()
        counted = Counter(actor.status for actor in actors if actor.role == "client")
        return {status: counted[status] for status in CLIENT_STATUSES}

    def _clients(self, given: dict[str, Any]) -> Any:
        """Everybody, by name; or, with a `limit`, a page of those after a name, and how many there
        are.
        """
        actors = self._state.storage.actors
        if "limit" not in given:
            return self._described(actors.all())
        after = schema.or_empty(schema.name)(given.get("after", ""), "after")
        page = actors.after(after, schema.page(given["limit"], "limit"))
        return {"clients": self._described(page), "total": actors.count()}

    def _described(self, actors: list[Actor]) -> list[dict[str, Any]]:
        storage = self._state.storage
        return [
            {
                "name": actor.name,
                "role": actor.role,
                "status": actor.status,
                "sequence": actor.sequence,
                "enrolled": time_text(actor.enrolled),
                "seen": "" if actor.seen is None else time_text(actor.seen),
                "samples": storage.commitments.count(actor.name),
            }
            for actor in actors
        ]


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise RefusedError("malformed", f"{name} must be given as a text")
    return value


def _amended(spec: Spec, given: dict[str, Any]) -> Spec:
    """The spec with what an operator may change: gamma, publication bits, messages; labels may be
    appended.
    """
    others = sorted(set(given) - set(AMENDABLE))
    if others:
        raise RefusedError(
            "malformed",
            f"an amendment can change {', '.join(AMENDABLE)}, not {', '.join(others)}",
        )
    try:
        after = Spec.from_dict({**spec.to_dict(), **given})
    except ExpungeError as problem:
        raise RefusedError("malformed", f"the amended spec cannot be: {problem}") from problem
    try:
        after.require_amends(spec)
    except SpecMismatchError as problem:
        raise RefusedError("malformed", str(problem)) from problem
    return after
