"""The node's side: the agent of its client is run for each message, with the answers that the
message brings.

Nothing is lost between messages: everything durable is in the client's store, and a request has the
same bytes each time. What the conversation itself needs is a setting of the store (`relay`).

A `ReplayCarrier` has the answers received so far, and records the calls that have none, to be
carried later. Laws: an answer is given once, as over a network; a call without an answer is
recorded, once, and raises NotYet.
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

from expunge.client import Agent, ClientStore, SyncResult, enrol
from expunge.client.folder import ClientFolder
from expunge.client.samples import Recompute
from expunge.crypto import canonical
from expunge.errors import CarrierError, ExpungeError, RefusedError
from expunge.transport.flower.messages import CALLS, Call, NodeMessage, Reply, ServerMessage
from expunge.wire.carrier import Carrier
from expunge.wire.token import Token


class NotYet(CarrierError):  # noqa: N818 - not a fault
    """A call has no answer yet; it comes when the agent is run again."""


class ReplayCarrier:
    """A carrier over answers received so far; `answered` counts the answered calls by name."""

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
            if not any(isinstance(argument, bytes) for argument in call.arguments)
        }
        self._noted = reads | self._noted

    def close(self) -> None:
        """Hold nothing."""


_SETTING = "relay"
_PATIENCE = 10.0  # seconds that another process may hold the store
_LONGEST_PROBLEM = 500

log = logging.getLogger("flwr")


def run_client(
    path: Path,
    message: ServerMessage,
    *,
    token: Token | None = None,
    recompute: Recompute | None = None,
    timeout: float = _PATIENCE,
) -> NodeMessage:
    """Run the client in this folder on a message, and tell what it has to say.

    Problems are reported, never raised.

    With a token, a client that is not there yet is enrolled first.
    """
    name = token.name if token is not None else path.name
    try:
        if token is not None and not _enrolled(path, timeout):
            replay = ReplayCarrier(message.replies)
            try:
                store = enrol(path, token, replay.carrier)
            except NotYet:
                with suppress(NotYet):
                    replay.carrier.federation()  # by which the answer to the enrolment is checked
                return NodeMessage(message.turn, name, replay.noted)
        else:
            store = ClientStore.open(path, timeout=timeout)
        with store:
            name = store.name
            return run_agent(store, message, recompute)[0]
    except ExpungeError as problem:
        return NodeMessage(message.turn, name, done=True, problem=_public_problem(name, problem))


def _enrolled(path: Path, timeout: float) -> bool:
    if not ClientFolder.is_at(path):
        return False
    with ClientStore.open(path, timeout=timeout) as store:
        return store.recall("enrolled") == "1"


def run_agent(
    store: ClientStore, message: ServerMessage, recompute: Recompute | None = None
) -> tuple[NodeMessage, SyncResult | ExpungeError | None]:
    """Run the agent of a store on a message: what is to be replied, and how its sync has ended, if
    it has.
    """
    state = _ConversationState(store)
    replies = message.replies if state.expects(message) else ()
    state.judge(replies)
    replay, doubtful = ReplayCarrier(replies), _doubted(store)
    agent = Agent(
        store,
        replay.carrier,
        recompute=recompute,
        attempts=1,
        nonce=lambda: state.draw(replay),
        announced=True,
    )
    outcome: SyncResult | ExpungeError | None = None
    try:
        outcome = agent.sync()
    except NotYet:
        replay.interrupt()
        agent.announce()
    except ExpungeError as refused:
        outcome = refused
    state.draw(replay)
    state.keep(message.turn, doubtful)
    reply = NodeMessage(
        message.turn, store.name, (), store.checkpoint[0], store.recall("head") or "", done=True
    )
    if outcome is None:
        return replace(reply, calls=replay.noted, done=False), None
    if isinstance(outcome, ExpungeError):
        return replace(reply, problem=_public_problem(store.name, outcome)), outcome
    return replace(reply, waiting=outcome.waiting), outcome


class _ConversationState:
    """What a conversation must remember: the last turn, the nonce of the question that waits, and
    what was offered.

    `offered` is the number of a request whose every attempt was made in that last turn, so that a
    refusal in the message that follows speaks for all of them; 0 if there is none.
    """

    def __init__(self, store: ClientStore) -> None:
        self._store = store
        text = store.recall(_SETTING)
        state: dict[str, Any] = (
            canonical.decode(text.encode("ascii"), "what the store keeps of a conversation")
            if text
            else {}
        )
        self._turn: str = state.get("turn", "")
        self._nonce: str = state.get("nonce", "") or secrets.token_hex(32)
        self._offered: int = state.get("offered", 0)
        self._answered = 0

    def expects(self, message: ServerMessage) -> bool:
        """Whether a message continues from the last one seen."""
        return bool(message.after) and message.after == self._turn

    def judge(self, replies: Iterable[Reply]) -> None:
        """A request is in doubt no longer, if all attempts have been answered by a refusal."""
        refused = any(
            reply.name == "request"
            and reply.refusal is not None
            and reply.refusal.code != "storage"
            for reply in replies
        )
        if refused and self._offered and _doubted(self._store) == self._offered:
            self._store.outbox.doubt(self._offered, False)

    def draw(self, replay: ReplayCarrier) -> str:
        """The nonce of the question that waits; a fresh one as soon as it is answered."""
        if replay.answered["sync"] != self._answered:
            self._answered = replay.answered["sync"]
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
        state = {"nonce": self._nonce, "offered": offered, "turn": turn}
        self._store.remember({_SETTING: canonical.encode(state).decode("ascii")})


def _doubted(store: ClientStore) -> int:
    """The number of the request that may have arrived without an answer; 0 if there is none."""
    composition = store.outbox.composed()
    return composition.sequence if composition is not None and composition.doubtful else 0


def _public_problem(name: str, problem: ExpungeError) -> str:
    """What is reported to the server of a problem: its text may name samples, so only a refusal,
    the server's own, is sent in full.
    """
    log.warning(
        "Expunge: the client %s could not go on: %s: %s", name, type(problem).__name__, problem
    )
    if isinstance(problem, RefusedError):
        return f"{problem.code}: {problem.reason}"[:_LONGEST_PROBLEM]
    return f"{type(problem).__name__}; its own log says more"
