"""How tests see that something is refused, and that nothing has changed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from expunge.crypto import SigningKey
from expunge.errors import RefusedError
from expunge.secagg import Collector, Participant, messages
from support.secagg import Room, name_of

ANN, BOB, CAT = name_of(0), name_of(1), name_of(2)


def snapshot(collector: Collector) -> bytes:
    """All that a collector knows, to see that nothing has changed."""
    state = {
        name: value
        for name, value in vars(collector).items()
        if name not in ("_keys", "_roster", "_hidden")
    }
    hidden = b"" if collector._hidden is None else collector._hidden.to_bytes()
    return pickle.dumps((sorted((name, repr(value)) for name, value in state.items()), hidden))


def refused(room: Room, data: bytes, code: str, match: str | None = None) -> RefusedError:
    before = snapshot(room.collector)
    with pytest.raises(RefusedError, match=match) as caught:
        room.collector.take(data)
    assert caught.value.code == code
    assert snapshot(room.collector) == before
    return caught.value


def resaid(data: bytes, key: SigningKey, body: bytes | None = None, **changes: Any) -> bytes:
    """A message with some of it changed, signed anew."""
    message = messages.read_client_message(data)
    return messages.sign(
        message.header | changes, bytes(message.body) if body is None else body, key
    )


def retold(kind: str, data: bytes, body: bytes | None = None, **changes: Any) -> bytes:
    """What the server tells, with some of it changed."""
    header, told_body = messages.read_server_message(kind, data)
    return messages.write_server_message(
        header | changes, bytes(told_body) if body is None else body
    )


def unmoved(
    participant: Participant, error: type[Exception], match: str | None, call: Callable[[], object]
) -> None:
    before = participant.to_bytes()
    with pytest.raises(error, match=match):
        call()
    assert participant.to_bytes() == before
