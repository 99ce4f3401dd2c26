"""The server's side: answers to the calls of a node's reply, and to those that its client will make
next.

Law: what is foreseen changes nothing but the number of messages: each answer is what the call would
have had.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from threading import Lock
from typing import Any

from expunge.errors import RefusedError
from expunge.evidence import published_head
from expunge.transport.flower.messages import Call, NodeMessage, Reply, ServerMessage
from expunge.wire.carrier import Carrier

_MOST_SIZES = 8  # of the log, among which proofs are foreseen: no more come up in one message

Each = Callable[
    [Callable[[NodeMessage], list[Reply]], Sequence[NodeMessage]], Iterable[list[Reply]]
]
Report = Callable[[str, BaseException], None]


class CallHandler:
    """Answers nodes, several at a time.

    `answered` counts, by name, the calls that were answered and not refused.
    """

    def __init__(
        self,
        carrier: Carrier,
        report: Report,
        *,
        turn: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._carrier = carrier
        self._report = report
        self._turn = turn
        self._lock = Lock()
        self.answered: Counter[str] = Counter()

    def opening(self) -> ServerMessage:
        """The first message of a conversation: its receiver answers with what it has to send."""
        return ServerMessage(self._turn())

    def answer(self, message: NodeMessage) -> ServerMessage:
        """The next message to a node: its calls, made in its order, and what it will ask for
        next.
        """
        return self.answer_all([message], map)[0]

    def answer_all(self, messages: Sequence[NodeMessage], each: Each) -> list[ServerMessage]:
        """The next messages to several nodes.

        `each` may be the `map` of a pool, so that their requests can share a round.

        What is foreseen is what follows from all of them, so that no client gets a head that is not
        the newest.
        """
        replies = list(each(self._replies, messages))
        return [
            ServerMessage(self._turn(), message.turn, (*answers, *self._foreseen(message, answers)))
            for message, answers in zip(messages, replies, strict=True)
        ]

    def _replies(self, message: NodeMessage) -> list[Reply]:
        replies = [self._reply(call) for call in message.calls]
        with self._lock:
            self.answered.update(reply.name for reply in replies if reply.refusal is None)
        return replies

    def is_newest(self, head: str) -> bool:
        """Whether the head of this digest (empty for none) is the one that is published now."""
        reply = self._reply(Call.of("head", head or None))
        return reply.value is None if head else reply.refusal is not None

    def _reply(self, call: Call) -> Reply:
        try:
            return Reply(call.digest, call.name, call.ask(self._carrier))
        except RefusedError as refusal:
            return Reply(call.digest, call.name, refusal=refusal)
        # After any failure, the other nodes are answered, and this one may try again
        except Exception as problem:
            self._report(f"the call {call.name!r} could not be answered", problem)
            reason = (
                f"the server could not answer ({type(problem).__name__}): offer the same "
                "again later"
            )
            return Reply(call.digest, call.name, refusal=RefusedError("storage", reason))

    def _foreseen(self, message: NodeMessage, replies: Iterable[Reply]) -> list[Reply]:
        """The head, if it is another than the client's, and proofs between the sizes of the log
        that the client will hear of.
        """
        if not any(call.name == "sync" for call in message.calls):
            return []
        head = self._reply(Call.of("head", message.head or None))
        sizes = {
            message.size,
            *(size for reply in (*replies, head) for size in _sizes(reply.value)),
        } - {0}
        steps = combinations(sorted(sizes)[-_MOST_SIZES:], 2)
        foreseen = [
            head,
            *(self._reply(Call.of("consistency", first, second)) for first, second in steps),
        ]
        answered = {reply.call for reply in replies}
        return [reply for reply in foreseen if reply.call not in answered]


def _sizes(answer: Any) -> set[int]:
    """The sizes of the log that an answer of ours speaks of, if it is an envelope or a head.

    Lists are proofs and entries of the log: hashes may begin like any text.
    """
    match answer:
        case bytes() if answer.startswith(published_head.MAGIC):
            return _sizes_within(published_head.split(answer)[0].to_json())
        case bytes() if answer.startswith(b"{"):
            return _sizes_within(json.loads(answer))
    return set()


def _sizes_within(value: Any) -> set[int]:
    """The same of a JSON value: in an envelope, and in envelopes within it."""
    match value:
        case {"payload": str(payload), "payloadType": str()}:
            return _sizes_within(json.loads(base64.b64decode(payload)))
        case dict():
            own = {value["size"]} if {"federation", "root", "size"} <= set(value) else set()
            return own.union(*map(_sizes_within, value.values()))
        case list():
            return set().union(*map(_sizes_within, value))
    return set()
