"""Participant: one client in one round of secure aggregation.

It takes bytes, gives bytes, and does no more.

Its phases: joined, shared, masked, agreed, revealed. Laws:

- Each `on_` method is a function of the state and its arguments: repeated with the same ones,
  before or after the state was stored and read back, it gives the same bytes. With others than the
  first time it refuses, and nothing changes. All randomness is drawn by `join`.
- What it says is fit to be sent once the new state (`to_bytes`) has been stored: a client that
  forgot what it said could be led to say something else.
- It takes nothing on trust from the server: keys are pinned by its caller, degree, threshold and
  quorum follow from the rules. It agrees to one list of survivors, of at least as many clients as
  the rules ask for, and reveals shares once, for that list, after a quorum of the roster has signed
  it: so there is no other list for which honest clients reveal shares.
- For no client does it reveal both a share of the self seed and one of the mask key; but of its
  own, to a holder that falsely complains of them (parcels.py). Once it has
  revealed shares, its state holds no secrets; or, where the rules name an arbiter, none but its
  own, by which it can open its part of a sum that turns out to be false (`open_part`).
- What it keeps between messages is a `ParticipantState`, secret and whole:
  `ParticipantState.from_bytes(state.to_bytes()) == state`, and any altered byte is refused.

A false statement by the server is an EvidenceError (FormatError where it cannot even be read); a
call out of turn is a ProtocolError.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from expunge import kinds
from expunge.crypto import canonical
from expunge.crypto.keys import SIGNATURE_BYTES, PublicKey, SigningKey
from expunge.errors import EvidenceError, ProtocolError, SpecMismatchError
from expunge.exact.wide import Wide
from expunge.frame import HeaderFormat, with_checksum
from expunge.ridge.spec import Aggregation
from expunge.ridge.statistics import Statistics
from expunge.secagg import messages
from expunge.secagg.arbitration import Opened, seal_opening
from expunge.secagg.keys import Private, Random, Secrets
from expunge.secagg.masks import MaskedVector
from expunge.secagg.parcels import (
    JUSTIFIED_BYTES,
    PARCEL_BYTES,
    BadParcelError,
    Dealing,
    Parcel,
    deal,
    justification,
    justified,
    own_share,
    parcels,
    unpack,
)
from expunge.secagg.plan import Opening
from expunge.secagg.roster import Join, Roster
from expunge.secagg.shamir import SHARE_BYTES
from expunge.wire import schema

_FORMAT = HeaderFormat(
    "a participant's state",
    b"expunge\x00participant\x00",
    version=messages.VERSION,
    remedy="leave this round and wait for the next",
)
_OLD_FORMAT = HeaderFormat("a participant's state", _FORMAT.magic)
_TEXTS = ("deliveries", "join", "key", "masked", "phase")
_PARTS = ("roster", "shares", "held", "survivors", "agreed", "reveal")
_KEYS = frozenset(
    {*_TEXTS, "included", "name", "opening", "parts", "peers", "rules", "secrets", "sequence"}
)


@dataclass(frozen=True, repr=False)
class ParticipantState:
    """A participant's state: what it is, its secrets, and what it has received and sent so far."""

    opening: Opening
    rules: Aggregation
    name: str
    sequence: int
    key: str  # id of its identity key
    join: str = ""  # digest of its message of joining
    phase: kinds.Stage = "joined"
    secrets: Secrets | None = None
    roster: bytes = b""
    shares: bytes = b""  # its message of shares
    deliveries: str = ""  # digest
    peers: tuple[str, ...] = ()  # neighbours whose shares arrived
    held: bytes = b""  # their shares, in their order
    masked: str = ""  # digest of its masked message
    survivors: bytes = b""
    agreed: bytes = b""  # its message of agreement
    reveal: bytes = b""  # its message of revealed shares
    included: tuple[tuple[str, int], ...] | None = None
    exposed: bool = False  # what its join says of its part

    def to_bytes(self) -> bytes:
        """The whole state: to be kept from all others."""
        content = {name: getattr(self, name) for name in _TEXTS}
        content |= {
            "included": None if self.included is None else [list(pair) for pair in self.included],
            "name": self.name,
            "opening": self.opening.to_json(),
            "parts": [len(getattr(self, name)) for name in _PARTS],
            "peers": list(self.peers),
            "rules": self.rules.to_dict(),
            "secrets": None if self.secrets is None else self.secrets.to_bytes().hex(),
            "sequence": self.sequence,
        }
        content |= {"exposed": True} if self.exposed else {}
        parts = (getattr(self, name) for name in _PARTS)
        return with_checksum([_FORMAT.write(canonical.encode(content), *parts)])

    @classmethod
    def from_bytes(cls, data: bytes) -> ParticipantState:
        """The inverse of `to_bytes`.

        Of a state of version 1, whose rounds are not continued, it keeps what it takes to ask how
        the round ended.
        """
        if data[: len(_FORMAT.magic) + 1] == _OLD_FORMAT.begin(0)[: len(_FORMAT.magic) + 1]:
            return cls._from_old_bytes(data)
        header, reader = _FORMAT.read(data)
        reader.require_checksum()
        content = canonical.decode(header, "the state of a participant")
        marks = {"exposed"} & set(content) if isinstance(content, dict) else set[str]()
        content = canonical.require_keys(content, "the state of a participant", _KEYS | marks)
        parts: dict[str, Any] = {
            name: bytes(reader.take(length, name))
            for name, length in zip(_PARTS, content["parts"], strict=True)
        }
        reader.end()
        secrets, included = content["secrets"], content["included"]
        return cls(
            opening=Opening.from_json(content["opening"]),
            rules=Aggregation.from_dict(content["rules"]),
            name=schema.name(content["name"], "the name"),
            sequence=schema.count(content["sequence"], "the sequence number"),
            secrets=None if secrets is None else Secrets.from_bytes(bytes.fromhex(secrets)),
            peers=tuple(content["peers"]),
            included=None
            if included is None
            else tuple((name, sequence) for name, sequence in included),
            exposed=content.get("exposed", False),
            **{name: content[name] for name in _TEXTS},
            **parts,
        )

    @classmethod
    def _from_old_bytes(cls, data: bytes) -> ParticipantState:
        header, reader = _OLD_FORMAT.read(data)
        reader.require_checksum()
        content = canonical.decode_object(
            header, "the state of a participant", _KEYS | {"survivors"}
        )
        reader.require(sum(content["parts"]))
        included = content["included"]
        return cls(
            opening=Opening.from_json(content["opening"]),
            rules=Aggregation.from_dict(content["rules"]),
            name=schema.name(content["name"], "the name"),
            sequence=schema.count(content["sequence"], "the sequence number"),
            key=content["key"],
            join=content["join"],
            phase=content["phase"],
            included=None
            if included is None
            else tuple((name, sequence) for name, sequence in included),
        )


class Participant:
    """A client's part in one round.

    Make one with `Participant.join`, or from its stored state with `from_bytes`.
    """

    def __init__(self, state: ParticipantState, key: SigningKey) -> None:
        self._state, self._key = state, key
        self._masked = b""  # the masked message is kept in memory only

    @classmethod
    def join(
        cls,
        opening: Opening,
        rules: Aggregation,
        *,
        name: str,
        sequence: int,
        key: SigningKey,
        exposed: bool = False,
        random: Random = secrets.token_bytes,
    ) -> Participant:
        """A client that takes part in a round, under its next sequence number, with fresh
        secrets; its part hides nobody if it is `exposed`.
        """
        schema.name(name, "the name")
        schema.count(sequence, "the sequence number")
        drawn = cls(
            ParticipantState(
                opening,
                rules,
                name,
                sequence,
                key.public.id,
                secrets=Secrets.draw(random),
                exposed=exposed,
            ),
            key,
        )
        drawn._state = replace(drawn._state, join=hashlib.sha256(drawn.message).hexdigest())
        return drawn

    def to_bytes(self) -> bytes:
        """Its whole secret state between messages."""
        return self._state.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, key: SigningKey, rules: Aggregation) -> Participant:
        """The participant that `to_bytes` stored, for the same key and rules."""
        state = ParticipantState.from_bytes(data)
        if state.key != key.public.id:
            raise EvidenceError(
                f"the round was joined with key {state.key[:16]}…, but {key.public.id[:16]}… was "
                "given: use that key"
            )
        if state.rules != rules:
            raise SpecMismatchError(
                "the rules of aggregation have been amended since the round was joined: leave it, "
                "join the next"
            )
        return cls(state, key)

    @property
    def opening(self) -> Opening:
        """The round that it takes part in."""
        return self._state.opening

    @property
    def name(self) -> str:
        """The client's name."""
        return self._state.name

    @property
    def sequence(self) -> int:
        """The sequence number that it joined with."""
        return self._state.sequence

    @property
    def join_digest(self) -> str:
        """SHA-256 of the bytes of its join."""
        return self._state.join

    @staticmethod
    def parts_in(roster: bytes) -> frozenset[tuple[str, int]]:
        """Whom a roster names, with their sequence numbers, before anything of it is believed: to
        find out whose keys are needed.
        """
        return Roster.read(roster).parts

    @property
    def phase(self) -> str:
        """joined, shared, masked, agreed or revealed: what it said last."""
        return self._state.phase

    @property
    def included(self) -> list[tuple[str, int]] | None:
        """Whose requests the sum holds, by name and sequence number, once the survivors are
        known.
        """
        return None if self._state.included is None else list(self._state.included)

    @property
    def roster(self) -> Roster | None:
        """Who takes part in the round; None before it is known, and after shares were revealed
        where there is no arbiter.
        """
        return Roster.read(self._state.roster) if self._state.roster else None

    @property
    def roster_digest(self) -> str:
        """SHA-256 of the roster, which names the round's clients and their keys."""
        return hashlib.sha256(self._state.roster).hexdigest()

    @property
    def message(self) -> bytes:
        """Its newest message.

        A masked one is not in the stored state: it is b"" until `on_deliveries` has made it again.
        Nor is any message in a state of version 1.
        """
        state = self._state
        if state.phase == "joined" and state.secrets is None:
            return b""
        if state.phase == "joined":
            return messages.sign(self._join().header(state.opening, state.rules), b"", self._key)
        return {
            "shared": state.shares,
            "masked": self._masked,
            "agreed": state.agreed,
            "revealed": state.reveal,
        }[state.phase]

    # -- roster -> shares --------------------------------------------------------------------------

    def on_roster(self, roster: bytes, pins: Mapping[str, PublicKey]) -> bytes:
        """The message of shares, if every join in the roster is signed by the key pinned for its
        name.
        """
        state, own = self._state, self._secrets("a roster")
        if state.phase != "joined":
            if bytes(roster) != state.roster:
                raise EvidenceError(
                    "another roster was given for this round before: the server tells different "
                    "things to be one"
                )
            return state.shares
        parsed_roster = Roster.read(roster)
        self._check_roster(parsed_roster)
        parsed_roster.verify(pins)
        dealt = deal(parsed_roster, own, state.name)
        header = self._header("shares", parsed_roster) | dealt.header
        message = messages.sign(header, dealt.body, self._key)
        self._state = replace(state, phase="shared", roster=parsed_roster.data, shares=message)
        return message

    def _check_roster(self, roster: Roster) -> None:
        state = self._state
        if roster.opening != state.opening:
            ours, theirs = state.opening.to_json(), roster.opening.to_json()
            different = ", ".join(
                f"{name} {theirs[name]!r} instead of {ours[name]!r}"
                for name in ours
                if ours[name] != theirs[name]
            )
            raise EvidenceError(
                f"the roster is not of the round that {state.name} joined: it has {different}"
            )
        if roster.rules != state.rules:
            raise EvidenceError(
                "the roster was made under other rules of aggregation than this client's: sync, "
                "then join another round"
            )
        if state.name not in roster or roster.join(state.name) != self._join():
            raise EvidenceError(
                f"the join of {state.name} is not in the roster as it was sent: it was left out "
                "or replaced"
            )
        if len(roster.names) < state.rules.fewest:
            raise EvidenceError(
                f"the roster has {len(roster.names)} clients, fewer than the {state.rules.fewest} "
                "that the rules ask for: wait for a round with more"
            )

    # -- deliveries -> masked ----------------------------------------------------------------------

    def on_deliveries(self, deliveries: bytes, vector: Wide) -> bytes:
        """The masked message, if every share delivered is the one that its dealer committed to."""
        state, own = self._state, self._secrets("deliveries")
        if state.phase == "joined":
            raise ProtocolError(
                "deliveries were given before a roster: give on_roster the roster first"
            )
        roster = Roster.read(state.roster)
        digest = hashlib.sha256(deliveries).hexdigest()
        peers, held = state.peers, state.held
        if state.phase == "shared":
            peers, held = self._unpacked(roster, own, deliveries)
        elif digest != state.deliveries:
            raise EvidenceError(
                "other deliveries were given for this round before: the server tells different "
                "things to be one"
            )
        header = self._header("masked", roster) | {
            "deliveries": digest,
            "length": int(vector.shape[-1]),
        }
        body = self._hidden(roster, own, peers, vector).view
        message = messages.sign(header, body, self._key)
        masked = hashlib.sha256(
            message[: -len(body)]
        ).hexdigest()  # its header has the body's digest
        if state.phase == "masked" and masked != state.masked:
            raise ProtocolError(
                "another vector was hidden under the masks of this round before: the two would "
                "show their difference. Give the same vector again, or wait for another round"
            )
        self._state = replace(
            state, phase="masked", deliveries=digest, peers=peers, held=held, masked=masked
        )
        self._masked = message
        return message

    def _unpacked(
        self, roster: Roster, own: Secrets, deliveries: bytes
    ) -> tuple[tuple[str, ...], bytes]:
        """The neighbours whose shares arrived, and the shares."""
        name, neighbours = self._state.name, roster.neighbours(self._state.name)
        header, body = messages.read_server_message("deliveries", deliveries)
        self._require_round(header)
        if header["client"] != name:
            raise EvidenceError(f"these deliveries are for {header['client']}, not for {name}")
        senders = messages.names(header["senders"], "the senders of deliveries")
        strangers = sorted(set(senders) - set(neighbours))
        if strangers:
            raise EvidenceError(
                f"{', '.join(strangers)} cannot have dealt shares to {name}: they are no "
                "neighbours of it in this round"
            )
        if len(senders) + 1 < roster.plan.threshold:
            raise EvidenceError(
                f"{len(senders)} neighbours of {name} are left, too few to open its masks: "
                f"{roster.plan.threshold} holders are needed. Wait for another round"
            )
        clear = messages.names(header.get("justified", []), "those that answered a complaint")
        sealed, answers = body[: PARCEL_BYTES * len(senders)], body[PARCEL_BYTES * len(senders) :]
        shown = messages.pieces(answers, len(clear), JUSTIFIED_BYTES, "the answers to a complaint")
        answered = dict(zip(clear, shown, strict=True))
        cipher, shares, bad = Private(own.cipher), list[bytes](), dict[str, Parcel]()
        problem: EvidenceError | None = None
        for dealer, parcel in zip(
            senders, parcels(sealed, len(senders), "the parcels of deliveries"), strict=True
        ):
            # The parcel first: who believed the server's answers would complain of good parcels,
            # and have honest dealers show their shares.
            try:
                shares += unpack(roster, cipher, parcel, dealer=dealer, holder=name)
            except EvidenceError as wrong:
                try:
                    content = answered.get(dealer, b"")
                    shares += justified(roster, parcel, content, dealer=dealer, holder=name)
                except EvidenceError:
                    bad[dealer], problem = parcel, problem or wrong
        if problem is not None:
            raise BadParcelError(str(problem), bad) from problem
        return senders, b"".join(shares)

    def _hidden(
        self, roster: Roster, own: Secrets, peers: tuple[str, ...], vector: Wide
    ) -> MaskedVector:
        """The vector under the self mask and the masks shared with each peer: plus for the first of
        a pair by name.
        """
        name, context = self._state.name, roster.context
        private, plus, minus = Private(own.mask), [context.self_key(own.seed, name)], list[bytes]()
        for peer in peers:
            (plus if name < peer else minus).append(
                context.pair_key(private, roster.join(peer).mask, name, peer)
            )
        return MaskedVector.of(vector, plus, minus)

    def complaint(self, bad: Mapping[str, Parcel]) -> bytes:
        """What it says before its masked vector, if parcels of these dealers cannot be used;
        nothing about it changes.
        """
        header = self._header("complaint", Roster.read(self._state.roster))
        body = b"".join(bad[dealer].to_bytes() for dealer in sorted(bad))
        return messages.sign(header | {"dealers": sorted(bad)}, body, self._key)

    def on_complaint(self, complaint: bytes, pins: Mapping[str, PublicKey]) -> bytes:
        """The answer to a neighbour that says that it cannot use this client's parcel, if it is the
        one that was sealed for it; nothing changes.
        """
        state, own = self._state, self._secrets("a complaint")
        if state.phase not in ("shared", "masked"):
            raise ProtocolError("a complaint is answered after shares were dealt, and before more")
        roster, message = Roster.read(state.roster), messages.read_client_message(complaint)
        self._require_round(message.header)
        holder = message.client
        if message.kind != "complaint" or holder not in pins or holder not in roster:
            raise EvidenceError("the server shows something else in the place of a complaint")
        message.signed.verify(pins[holder])
        dealers = messages.names(message.header["dealers"], "the dealers of a complaint")
        bad = dict(zip(dealers, parcels(message.body, len(dealers), "a complaint"), strict=True))
        if state.name not in bad:
            raise EvidenceError(f"{holder} does not complain of {state.name}")
        body = justification(roster, own, bad[state.name], state.name, holder)
        return messages.sign(
            self._header("justification", roster) | {"holder": holder}, body, self._key
        )

    # -- survivors -> agreed -----------------------------------------------------------------------

    def on_survivors(self, survivors: bytes) -> bytes:
        """The message of agreement to these survivors, and to no others in this round."""
        state = self._state
        if state.phase in ("agreed", "revealed"):
            if bytes(survivors) != state.survivors:
                raise EvidenceError(
                    "this client has agreed to another list of survivors: with shares for both the "
                    "server could open a client's own vector"
                )
            return state.agreed
        if state.phase != "masked":
            raise ProtocolError(
                "survivors were given before the masked message was made: give on_deliveries the "
                "deliveries first"
            )
        roster = Roster.read(state.roster)
        alive = self._checked_survivors(roster, survivors)
        header = roster.agreed(state.name, hashlib.sha256(survivors).hexdigest())
        message = messages.sign(header, b"", self._key)
        self._state = replace(
            state,
            phase="agreed",
            survivors=bytes(survivors),
            agreed=message,
            included=tuple(roster.sequences(sorted(alive))),
        )
        self._masked = b""
        return message

    def _checked_survivors(self, roster: Roster, survivors: bytes) -> frozenset[str]:
        name, peers, plan = self._state.name, self._state.peers, roster.plan
        header, body = messages.read_server_message("survivors", survivors)
        self._require_round(header)
        messages.pieces(body, 0, 1, "the survivors")
        alive = frozenset(messages.names(header["clients"], "the survivors"))
        unknown = sorted(client for client in alive if client not in roster)
        if unknown:
            raise EvidenceError(
                f"{', '.join(unknown)} cannot have survived: they are not in the roster"
            )
        if name not in alive:
            raise EvidenceError(
                f"{name} is not among the survivors: its vector is not in the sum, so it reveals "
                "nothing"
            )
        risen = sorted(alive.intersection(roster.neighbours(name)) - set(peers))
        if risen:
            raise EvidenceError(
                f"{', '.join(risen)} cannot have survived: their shares never arrived here"
            )
        if len(alive) < plan.survivors:
            raise EvidenceError(
                f"{len(alive)} of {len(roster.names)} clients survived, fewer than the "
                f"{plan.survivors} that the rules ask for: "
                "the sum must not be opened. Wait for another round"
            )
        holders = 1 + len(alive.intersection(peers))
        if holders < plan.threshold:
            raise EvidenceError(
                f"{holders} holders of the shares of {name} survived, fewer than the "
                f"{plan.threshold} that open its mask: the "
                "round cannot be completed. Wait for another"
            )
        return alive

    # -- agreements -> reveal ----------------------------------------------------------------------

    def on_agreements(
        self,
        agreements: bytes,
        pins: Mapping[str, PublicKey],
        shown: Set[tuple[str, int]] = frozenset(),
    ) -> bytes:
        """The message of revealed shares, of the self seeds of survivors and of the mask keys of
        neighbours that dropped out, if a quorum of the roster has signed the survivors, and a
        quorum of those whose parts are not exposed, nor `shown` by the log.
        """
        state = self._state
        if state.phase == "revealed":
            return state.reveal
        if state.phase != "agreed":
            raise ProtocolError(
                "agreements were given before this client agreed: give on_survivors the survivors "
                "first"
            )
        roster = Roster.read(state.roster)
        self._check_agreements(roster, agreements, pins, shown)
        alive = {name for name, _ in state.included or ()}
        shares = {state.name: own_share(roster, self._secrets("agreements"), state.name)}
        for peer, pair in zip(state.peers, _cut(state.held, 2 * SHARE_BYTES), strict=True):
            shares[peer] = pair[:SHARE_BYTES] if peer in alive else pair[SHARE_BYTES:]
        header = self._header("reveal", roster) | {
            "survivors": hashlib.sha256(state.survivors).hexdigest()
        }
        message = messages.sign(
            header, b"".join(shares[name] for name in sorted(shares)), self._key
        )
        self._state = ParticipantState(
            state.opening,
            state.rules,
            state.name,
            state.sequence,
            state.key,
            join=state.join,
            phase="revealed",
            survivors=state.survivors,
            agreed=state.agreed,
            reveal=message,
            included=state.included,
        )
        if state.rules.arbiter:
            self._state = replace(
                self._state, secrets=state.secrets, roster=state.roster, peers=state.peers
            )
        return message

    def _check_agreements(
        self,
        roster: Roster,
        agreements: bytes,
        pins: Mapping[str, PublicKey],
        shown: Set[tuple[str, int]],
    ) -> None:
        """Raise EvidenceError unless a quorum has agreed to what this client agreed to."""
        header, body = messages.read_server_message("agreements", agreements)
        self._require_round(header)
        digest = hashlib.sha256(self._state.survivors).hexdigest()
        if header["survivors"] != digest:
            raise EvidenceError(
                "the agreements are to other survivors than this client was told of: the server "
                "tells different things to be one. Nothing is revealed"
            )
        names = messages.names(header["clients"], "the clients that agreed")
        signatures = messages.pieces(body, len(names), SIGNATURE_BYTES, "the agreements")
        alive = {name for name, _ in self._state.included or ()}
        strangers = sorted(set(names) - alive)
        if strangers:
            raise EvidenceError(
                f"{', '.join(strangers)} cannot have agreed: they are not among the survivors"
            )
        roster.verify(pins)
        lacking = roster.lacking(names, shown)
        if lacking:
            raise EvidenceError(
                f"{lacking}: others may have been told of other survivors, so nothing is revealed. "
                "Wait for another round"
            )
        for name, signature in zip(names, signatures, strict=True):
            roster.verify_agreed(name, digest, signature, pins[name])

    # -- a false sum -> opening --------------------------------------------------------------------

    @property
    def can_open(self) -> bool:
        """Whether it can open its part of the sum to the arbiter: it has masked it, and holds the
        keys.
        """
        state = self._state
        return bool(
            state.rules.arbiter
            and state.secrets
            and state.phase in ("masked", "agreed", "revealed")
        )

    def open_part(self, added: Statistics | None, deleted: Statistics | None) -> bytes:
        """The message by which the arbiter, and nobody else, sees this client's part of the sum."""
        state = self._state
        if not self.can_open or state.secrets is None:
            raise ProtocolError(
                "this client has no part of a sum to open, or holds its keys no longer"
            )
        roster = Roster.read(state.roster)
        dealing = Dealing.of(roster, state.secrets, state.name)
        body = seal_opening(roster, state.name, Opened.of(dealing, added, deleted))
        header = self._header("opening", roster) | {"version": messages.OPENING_VERSION}
        return messages.sign(header, body, self._key)

    # -- what all phases share ---------------------------------------------------------------------

    def _secrets(self, what: str) -> Secrets:
        if self._state.secrets is None or self._state.phase == "revealed":
            raise ProtocolError(
                f"{what} came after shares were revealed: this client has no secrets of the round "
                "any more"
            )
        return self._state.secrets

    def _join(self) -> Join:
        own, state = self._secrets("a roster"), self._state
        cipher, mask = Private(own.cipher).public, Private(own.mask).public
        return Join(state.name, state.sequence, cipher, mask, state.exposed)

    def _header(self, kind: messages.ClientKind, roster: Roster) -> dict[str, Any]:
        opening = self._state.opening
        who = {
            "client": self._state.name,
            "kind": kind,
            "roster": roster.digest,
            "sequence": self._state.sequence,
        }
        return who | {"federation": opening.federation, "round": opening.round}

    def _require_round(self, header: dict[str, Any]) -> None:
        state = self._state
        digest = hashlib.sha256(state.roster).hexdigest()
        if (header["federation"], header["round"], header["roster"]) != (
            state.opening.federation,
            state.opening.round,
            digest,
        ):
            raise EvidenceError(
                f"the {header['kind']} are not of this round and its roster: they are old, or "
                "another round's"
            )


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
