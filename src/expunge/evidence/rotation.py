"""Key rotation: which key may have signed what, and when.

A rotation is an envelope signed by the old key and by the new one: the old key names its successor,
the new key accepts. Trust extends both ways from the key that a reader has pinned. A retired key is
accepted only for times up to its rotation, a newer key only for times from it on. Positions in the
log need not grow: the log of a restored server may be shorter than the one that it was rotated in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from expunge.crypto import Envelope, PublicKey, SigningKey
from expunge.crypto.envelope import short_id
from expunge.errors import EvidenceError
from expunge.wire import payloads, schema

_CHECK = schema.objects(
    {
        "federation": schema.federation,
        "old": schema.key_text,
        "new": schema.key_text,
        "time": schema.time,
        "index": schema.count,
    }
)


@dataclass(frozen=True)
class Rotation:
    """The change from one key of a server to the next, signed by both.

    Attributes
    ----------
    federation : str
        The federation's id.
    old : PublicKey
        The key that was retired.
    new : PublicKey
        The key that took its place.
    time : str
        When it changed, in UTC.
    index : int
        The position of the `rotated` entry in the audit log.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.crypto import Envelope
    >>> from expunge.evidence import Rotation
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> pinned = federation.office.server
    >>> rotated = federation.office.do("rotate-key", {})
    >>> rotation = Rotation.read(Envelope.from_json(rotated["rotation"], "rotation"))
    >>> rotation.old == pinned, rotation.new.text == rotated["key"]
    (True, True)
    >>> federation.close()
    >>> folder.cleanup()
    """

    federation: str
    old: PublicKey
    new: PublicKey
    time: str
    index: int

    @classmethod
    def read(cls, envelope: Envelope) -> Rotation:
        """The rotation, if both keys that it names signed it.

        Parameters
        ----------
        envelope : Envelope
            The envelope of kind `rotation`.

        Returns
        -------
        Rotation
            The rotation. That either key is the server's follows only from a `KeyChain`.

        Raises
        ------
        EvidenceError
            A signature does not hold, or both keys are the same.
        FormatError
            The content is not a rotation.
        """
        return _read(envelope)


# Every check of evidence begins with all rotations there have been: each is verified once.
@lru_cache(maxsize=1024)
def _read(envelope: Envelope) -> Rotation:
    parts = _CHECK(envelope.unverified(), "a rotation")
    old, new = PublicKey.from_text(parts["old"]), PublicKey.from_text(parts["new"])
    if old == new:
        raise EvidenceError(f"a rotation from key {old.id[:16]}… to itself changes nothing")
    envelope.verify(old, new)
    return Rotation(parts["federation"], old, new, parts["time"], parts["index"])


def rotate(federation: str, old: SigningKey, new: SigningKey, time: str, index: int) -> Envelope:
    """The envelope of a rotation; `index` is the position of its `rotated` entry in the log."""
    content = {
        "federation": federation,
        "old": old.public.text,
        "new": new.public.text,
        "time": time,
        "index": index,
    }
    return Envelope.signed("rotation", _CHECK(content, "a rotation"), old, new)


@dataclass(frozen=True)
class _Trusted:
    key: PublicKey
    since: str  # "" if always
    until: str  # "" if still


class KeyChain:
    """The keys of one server: a pinned key, and those that rotations link to it.

    Parameters
    ----------
    pinned : PublicKey
        A key of the server that is trusted already.
    rotations : sequence of Envelope, default ()
        Rotations in any order; together they must be one line through the pinned key.

    Attributes
    ----------
    pinned : PublicKey
        The pinned key.
    envelopes : tuple of Envelope
        The rotations as they were given.
    rotations : tuple of Rotation
        The rotations, the oldest first.

    Raises
    ------
    EvidenceError
        A rotation is not signed by both of its keys, or they are not one line through the pinned
        key, in time, in one federation.
    FormatError
        An envelope is not a rotation.

    Examples
    --------
    >>> from expunge.crypto import Envelope, SigningKey
    >>> from expunge.evidence import KeyChain
    >>> old, new = SigningKey(bytes(32)), SigningKey(bytes(31) + b"!")
    >>> content = {
    ...     "federation": "0" * 32,
    ...     "old": old.public.text,
    ...     "new": new.public.text,
    ...     "time": "2026-11-15T09:30:00Z",
    ...     "index": 7,
    ... }
    >>> rotation = Envelope.signed("rotation", content, old, new)  # the server does this
    >>> chain = KeyChain(old.public, [rotation])
    >>> chain.newest == new.public
    True
    >>> chain.key(old.public.id, "2026-11-14T00:00:00Z") == old.public
    True
    >>> chain.key(old.public.id, "2026-11-16T00:00:00Z")
    Traceback (most recent call last):
    ...
    expunge.errors.EvidenceError: the signature of 2026-11-16T00:00:00Z is signed by key ...
    """

    def __init__(self, pinned: PublicKey, rotations: Sequence[Envelope] = ()) -> None:
        read = list({envelope: Rotation.read(envelope) for envelope in rotations}.values())
        self.pinned = pinned
        self.envelopes = tuple(rotations)
        self.rotations = _in_line(pinned, read)
        self._trusted: dict[str, _Trusted] = {}
        keys = (
            [self.rotations[0].old, *(each.new for each in self.rotations)]
            if self.rotations
            else [pinned]
        )
        times = ["", *(each.time for each in self.rotations), ""]
        for key, since, until in zip(keys, times[:-1], times[1:], strict=True):
            self._trusted[key.id] = _Trusted(key, since, until)

    @property
    def in_order(self) -> list[Envelope]:
        """The envelopes of the rotations, the oldest first."""
        by_old = {Rotation.read(envelope).old.id: envelope for envelope in self.envelopes}
        return [by_old[rotation.old.id] for rotation in self.rotations]

    @property
    def newest(self) -> PublicKey:
        """The key that the server signs with now, as far as this chain knows."""
        return self.rotations[-1].new if self.rotations else self.pinned

    def verify(self, envelope: Envelope, claims: Callable[[Any], tuple[str, str]]) -> Any:
        """The content of an envelope, if a key of the chain signed it at a time when that key was
        in use.

        Parameters
        ----------
        envelope : Envelope
            An envelope with one signature.
        claims : callable
            Takes the content and returns the federation and the time that it claims; it must refuse
            content of another form.

        Returns
        -------
        object
            The content as a JSON value.

        Raises
        ------
        EvidenceError
            Another key signed it, the key was not in use at that time, or the federation is
            another.
        """
        if len(envelope.signatures) != 1:
            raise EvidenceError(
                f"the {envelope.kind} must have one signature, got {len(envelope.signatures)}"
            )
        trusted = self._find(envelope.signatures[0][0], envelope.kind)
        content = envelope.verify(trusted.key)
        federation, time = claims(content)
        self.require_federation(federation, envelope.kind)
        _require_timely(trusted, time, envelope.kind)
        return content

    def knows(self, key_id: str) -> bool:
        """Whether a key belongs to the chain, at whatever time.

        Parameters
        ----------
        key_id : str
            The id of the key (`PublicKey.id`).

        Returns
        -------
        bool
            True if it is the pinned key or linked to it.
        """
        return key_id in self._trusted

    def key(self, key_id: str, time: str) -> PublicKey:
        """The key with an id, if it was in use at a time.

        Parameters
        ----------
        key_id : str
            The id of the key (`PublicKey.id`).
        time : str
            A time in UTC, such as `"2026-11-15T09:30:00Z"`.

        Returns
        -------
        PublicKey
            The key.

        Raises
        ------
        EvidenceError
            The key is not of this chain, or was not in use at that time.
        """
        trusted = self._find(key_id, "signature")
        _require_timely(trusted, time, "signature")
        return trusted.key

    def require_federation(self, federation: str, what: str) -> None:
        """Return unless the chain's rotations are of another federation.

        Parameters
        ----------
        federation : str
            The id of the federation that a file claims.
        what : str
            What the file is, for the error's text.

        Raises
        ------
        EvidenceError
            The rotations are of another federation.
        """
        if self.rotations and self.rotations[0].federation != federation:
            raise EvidenceError(
                f"the {what} is of federation {federation}, but the rotations of its keys are of "
                f"{self.rotations[0].federation}"
            )

    def _find(self, key_id: str, what: str) -> _Trusted:
        if key_id not in self._trusted:
            key_ids = ", ".join(f"{key_id[:16]}…" for key_id in self._trusted)
            raise EvidenceError(
                f"the {what} is signed by key {short_id(key_id)}, which is not the given key nor "
                f"linked to it by a rotation (known: {key_ids}). Check that it is from this "
                "server, or add the rotation that leads to its key"
            )
        return self._trusted[key_id]


def read_federation(data: bytes, pinned: PublicKey) -> tuple[dict[str, Any], list[Envelope]]:
    """What a server says of its federation (spec, limits, rotations), with the rotations as
    envelopes; EvidenceError unless they link its signature to the pinned key.
    """
    envelope, content = payloads.open_unverified("federation", data)
    rotations = [Envelope.from_json(value, "rotation") for value in content["rotations"]]
    KeyChain(pinned, rotations).verify(
        envelope, lambda parts: (parts["federation"], parts["checkpoint"]["time"])
    )
    return content, rotations


def chain_for(envelope: Envelope, chains: Sequence[KeyChain]) -> KeyChain:
    """The chain that knows who signed this; the first one, to be told that it does not, if none
    does.
    """
    signer = envelope.signatures[0][0]
    return next((chain for chain in chains[1:] if chain.knows(signer)), chains[0])


def _require_timely(trusted: _Trusted, time: str, what: str) -> None:
    if trusted.until and time > trusted.until:
        raise EvidenceError(
            f"the {what} of {time} is signed by key {trusted.key.id[:16]}…, which was retired at "
            f"{trusted.until}: whoever still has that key may have made it"
        )
    if time < trusted.since:
        raise EvidenceError(
            f"the {what} of {time} is signed by key {trusted.key.id[:16]}…, which was not in use "
            f"before {trusted.since}"
        )


def _in_line(pinned: PublicKey, rotations: Sequence[Rotation]) -> tuple[Rotation, ...]:
    """The rotations from the oldest to the newest; they must be one line, in time, in one
    federation, through the pinned key.
    """
    by_old = {each.old.id: each for each in rotations}
    by_new = {each.new.id: each for each in rotations}
    if len(by_old) != len(rotations) or len(by_new) != len(rotations):
        raise EvidenceError(
            "two rotations begin or end with the same key: one of them was not made by the server"
        )
    line: list[Rotation] = []
    earlier = by_new.pop(pinned.id, None)
    while earlier is not None:
        line.insert(0, earlier)
        earlier = by_new.pop(earlier.old.id, None)
    later = by_old.get(pinned.id)
    while later is not None and later not in line:
        line.append(later)
        later = by_old.get(later.new.id)
    if later is not None:
        raise EvidenceError("the rotations lead back to a key that was retired before")
    if len(line) != len(rotations):
        strangers = [each for each in rotations if each not in line]
        raise EvidenceError(
            f"the rotation from key {strangers[0].old.id[:16]}… to {strangers[0].new.id[:16]}… is "
            f"not linked to the given key {pinned.id[:16]}…"
        )
    for rotation, successor in pairwise(line):
        if rotation.time > successor.time or rotation.federation != successor.federation:
            raise EvidenceError(
                f"the rotations of {rotation.time} (entry {rotation.index}) and {successor.time} "
                f"(entry {successor.index}) are not one after the other in one federation"
            )
    return tuple(line)
