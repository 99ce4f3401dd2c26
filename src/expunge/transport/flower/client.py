"""A node's side: the agent of its client is run for each message, with the answers that the message
brings.

Nothing is lost between messages: everything durable is in the client's store, and a request has the
same bytes each time. What the conversation itself needs is a setting of the store (`relay`).

The `Relay` is a carrier whose answers are those at hand; what they do not answer is noted, to be
carried later. Laws: an answer is given once, as over a network; a call without an answer is noted,
once, and raises NotYet.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from expunge.client import Agent, ClientStore, Synced, enrol
from expunge.client.samples import Recompute
from expunge.crypto import canonical
from expunge.errors import CarrierError, ExpungeError, RefusedError
from expunge.transport.flower.messages import CALLS, Call, NodeSays, Reply, ServerSays
from expunge.wire.carrier import Carrier
from expunge.wire.token import Token


class NotYet(CarrierError):  # noqa: N818 - not a fault
    """The call is on its way, and its answer comes when the agent is run again."""


class Relay:
    """A carrier over answers at hand; `answered` counts, by name, the calls that had one."""

    def __init__(self, replies: Iterable[Reply] = ()) -> None:
        self._replies = {reply.call: reply for reply in replies}
        self._noted: dict[str, Call] = {}
        self._used: dict[str, Call] = {}
        self.answered: Counter[str] = Counter()

    @property
    def carrier(self) -> Carrier:
        """The relay as the carrier that it is: it has every method of one, by `__getattr__`."""
        return cast("Carrier", self)

    @property
    def noted(self) -> tuple[Call, ...]:
        """The calls without an answer, in the order in which they are to be made; one made again
        comes last.
        """
        return tuple(self._noted.values())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in CALLS:
            raise AttributeError(f"a carrier has no {name!r}")
        return partial(self._call, name)

    def _call(self, name: str, /, *arguments: Any, **named: Any) -> Any:
        call = Call.of(name, *arguments, **named)
        digest = call.digest
        reply = self._replies.pop(digest, None)
        if reply is not None:
            self.answered[name] += 1
            self._used[digest] = call
            return reply.result()
        self._noted.pop(digest, None)
        self._noted[digest] = call
        raise NotYet(
            f"the call {name!r} is on its way: run the agent again when its answer is here"
        )

    def interrupt(self) -> None:
        """From now on, everything is noted; and what was only read is noted again, for the next run
        must read it again.
        """
        self._replies.clear()
        reads = {
            digest: call
            for digest, call in self._used.items()
            if not any(isinstance(one, bytes) for one in call.arguments)
        }
        self._noted = reads | self._noted

    def close(self) -> None:
        """Nothing is held."""


_SETTING = "relay"
_PATIENCE = 10.0  # seconds that another process may hold the store
_LONGEST_PROBLEM = 500

log = logging.getLogger("flwr")


def attend(
    path: Path,
    says: ServerSays,
    *,
    token: Token | None = None,
    recompute: Recompute | None = None,
    timeout: float = _PATIENCE,
) -> NodeSays:
    """Run the client in this folder on a message, and tell what it has to say.

    Problems are told, and never raised.

    With a token, a client that is not there yet is enrolled first.
    """
    name = token.name if token is not None else path.name
    try:
        if token is not None and not _enrolled(path, timeout):
            relay = Relay(says.replies)
            try:
                store = enrol(path, token, relay.carrier)
            except NotYet:
                with suppress(NotYet):
                    relay.carrier.federation()  # by which the answer to the enrolment is checked
                return NodeSays(says.turn, name, relay.noted)
        else:
            store = ClientStore.open(path, timeout=timeout)
        with store:
            name = store.name
            return respond(store, says, recompute)[0]
    except ExpungeError as problem:
        return NodeSays(says.turn, name, done=True, problem=_told(name, problem))


def _enrolled(path: Path, timeout: float) -> bool:
    if not (path / "client.db").exists():
        return False
    with ClientStore.open(path, timeout=timeout) as store:
        return store.recall("enrolled") == "1"


def respond(
    store: ClientStore, says: ServerSays, recompute: Recompute | None = None
) -> tuple[NodeSays, Synced | ExpungeError | None]:
    """Run the agent of a store on a message: what is to be replied, and how its sync has ended, if
    it has.
    """
    memory = _Memory(store)
    replies = says.replies if memory.expects(says) else ()
    memory.judge(replies)
    relay, doubted = Relay(replies), _doubted(store)
    agent = Agent(
        store,
        relay.carrier,
        recompute=recompute,
        attempts=1,
        nonce=lambda: memory.draw(relay),
        announced=True,
    )
    outcome: Synced | ExpungeError | None = None
    try:
        outcome = agent.sync()
    except NotYet:
        relay.interrupt()
        agent.announce()
    except ExpungeError as refused:
        outcome = refused
    memory.draw(relay)
    memory.keep(says.turn, doubted)
    said = NodeSays(
        says.turn, store.name, (), store.checkpoint[0], store.recall("head") or "", done=True
    )
    if outcome is None:
        return replace(said, calls=relay.noted, done=False), None
    if isinstance(outcome, ExpungeError):
        return replace(said, problem=_told(store.name, outcome)), outcome
    return replace(said, waiting=outcome.waiting), outcome


class _Memory:
    """What a conversation must remember: the last turn, the nonce of the question that waits, and
    what was offered.

    `offered` is the number of a request whose every attempt was made in that last turn, so that a
    refusal in the message that follows speaks for all of them; 0 if there is none.
    """

    def __init__(self, store: ClientStore) -> None:
        self._store = store
        text = store.recall(_SETTING)
        kept: dict[str, Any] = (
            canonical.decode(text.encode("ascii"), "what the store keeps of a conversation")
            if text
            else {}
        )
        self._turn: str = kept.get("turn", "")
        self._nonce: str = kept.get("nonce", "") or secrets.token_hex(32)
        self._offered: int = kept.get("offered", 0)
        self._answered = 0

    def expects(self, says: ServerSays) -> bool:
        """Whether a message goes on from the last one that was seen."""
        return bool(says.after) and says.after == self._turn

    def judge(self, replies: Iterable[Reply]) -> None:
        """A request is in doubt no longer, if all attempts have been answered by a refusal."""
        refused = any(
            one.name == "request" and one.refusal is not None and one.refusal.code != "storage"
            for one in replies
        )
        if refused and self._offered and _doubted(self._store) == self._offered:
            self._store.outbox.doubt(self._offered, False)

    def draw(self, relay: Relay) -> str:
        """The nonce of the question that waits; a fresh one as soon as it is answered."""
        if relay.answered["sync"] != self._answered:
            self._answered = relay.answered["sync"]
            self._nonce = secrets.token_hex(32)
        return self._nonce

    def keep(self, turn: str, doubted: int) -> None:
        """Remember, durably, before the reply leaves; `doubted` is the request that was in doubt
        when the turn began.
        """
        now = _doubted(self._store)
        # the same message twice: one reply of the two will be used
        repeated = turn == self._turn and now == self._offered
        offered = now if now != doubted or repeated else 0
        kept = {"nonce": self._nonce, "offered": offered, "turn": turn}
        self._store.remember({_SETTING: canonical.encode(kept).decode("ascii")})


def _doubted(store: ClientStore) -> int:
    """The number of the request that may have arrived without an answer; 0 if there is none."""
    composition = store.outbox.composed()
    return composition.sequence if composition is not None and composition.doubtful else 0


def _told(name: str, problem: ExpungeError) -> str:
    """What the server is told of a problem: its text may name samples, so only a refusal, the
    server's own, is told whole.
    """
    log.warning(
        "Expunge: the client %s could not go on: %s: %s", name, type(problem).__name__, problem
    )
    if isinstance(problem, RefusedError):
        return f"{problem.code}: {problem.reason}"[:_LONGEST_PROBLEM]
    return f"{type(problem).__name__}; its own log says more"
