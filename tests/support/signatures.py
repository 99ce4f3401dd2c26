"""Signatures that this process has made itself need not be verified with the curve again.

Law: `PublicKey.verify` takes and refuses what it did before. Whoever signs remembers the key, the
data and the signature; just these three together are known to fit. Anything else, such as what
another process has signed, or what was altered in one bit, is verified as ever. So is everything
in the tests of keys and evidence (`forgotten`), and in processes that tests start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps

from expunge.crypto import PublicKey, SigningKey


class Made:
    """The newest signatures, by the key and the data that they are of."""

    def __init__(self, most: int = 4096) -> None:
        self.is_used = True
        self._known: dict[bytes, tuple[PublicKey, bytes]] = {}
        self._order = deque[bytes]()
        self._most = most

    def add(self, signature: bytes, key: PublicKey, data: bytes) -> None:
        if len(self._order) == self._most:
            self._known.pop(self._order.popleft(), None)
        self._known[signature] = (key, bytes(data))
        self._order.append(signature)

    def has(self, signature: object, key: PublicKey, data: bytes) -> bool:
        if not (self.is_used and isinstance(signature, bytes)):
            return False
        return self._known.get(signature) == (key, data)


MADE = Made()


def remember() -> None:
    """From here on, in this process."""
    sign, verify = SigningKey.sign, PublicKey.verify

    @wraps(sign)
    def signed(self: SigningKey, data: bytes) -> bytes:
        signature = sign(self, data)
        MADE.add(signature, self.public, data)
        return signature

    @wraps(verify)
    def verified(self: PublicKey, signature: bytes, data: bytes) -> None:
        if not MADE.has(signature, self, data):
            verify(self, signature, data)

    SigningKey.sign = signed  # type: ignore[method-assign]
    PublicKey.verify = verified  # type: ignore[method-assign]


@contextmanager
def forgotten() -> Iterator[None]:
    """Meanwhile every signature is verified."""
    MADE.is_used = False
    try:
        yield
    finally:
        MADE.is_used = True
