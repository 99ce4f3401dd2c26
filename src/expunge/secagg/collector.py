"""Collector: the server's part in one round of secure aggregation, with no I/O and no clock.

Its phases: joining, sharing, masking, agreeing, revealing, done. In each, `take` hears what clients
say, `say` tells a client what it must know, and `advance` continues with those that have answered.
When to advance is for the caller, who has a clock.

Laws: a message that is refused changes nothing, and one that was taken before is taken again
without effect; an `advance` that raises Aborted (the end of a round without a sum) changes nothing
either, so that the caller may wait for more. Of the masked vectors only their sum is kept. `sum()`
is the exact sum of the vectors of `included`, and there is none of fewer clients than the rules ask
for.

`masks_left` says which masks are left in the sum, from the shares that clients revealed. Law: with
the shares that honest clients reveal, and of each client at least the threshold of holders, what is
left in the sum over the survivors is the self mask of every survivor, and the pairwise masks
between survivors and neighbours that dealt shares and then dropped out. Pairs of survivors have
cancelled; who dropped out before dealing has no masks in anything.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from expunge.crypto import PublicKey
from expunge.crypto.envelope import SignedHeader
from expunge.errors import EvidenceError, FormatError, ProtocolError, RefusedError
from expunge.exact.wide import Wide
from expunge.kinds import PHASES, Phase
from expunge.ridge.spec import Aggregation
from expunge.secagg import messages, shamir
from expunge.secagg.arbitration import RoundRecords
from expunge.secagg.keys import Private
from expunge.secagg.masks import MaskedVector
from expunge.secagg.messages import ClientKind, ClientMessage
from expunge.secagg.parcels import (
    JUSTIFIED_BYTES,
    Dealt,
    Parcel,
    justified,
    parcels,
    share_digest,
)
from expunge.secagg.plan import Opening
from expunge.secagg.roster import Join, Roster, survivors_message
from expunge.secagg.shamir import SHARE_BYTES
from expunge.secagg.unmasking import Part


class Aborted(ProtocolError):  # noqa: N818 - the word for it in the protocol
    """A round that cannot produce its sum: nothing is learnt or applied.

    `reason` says who or what was missing; `culprit` is a client that made it impossible by what it
    sent, if one did.
    """

    def __init__(self, reason: str, culprit: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.culprit = culprit


_FEW = 5  # names in a list


@dataclass(frozen=True)
class Hearing:
    """All that the collector has received: who dealt what, who survived, and who revealed which
    share of whom.
    """

    roster: Roster
    dealt: Mapping[str, Dealt]
    survivors: frozenset[str]
    revealed: Mapping[str, Mapping[str, bytes]]  # by holder, then by dealer

    def needed(self) -> list[str]:
        """Whose secrets must be opened: survivors, and drop-outs with surviving neighbours."""
        near = (
            name for name in self.dealt if self.survivors.intersection(self.roster.neighbours(name))
        )
        return sorted(self.survivors.union(near))

    def holders(self, dealer: str, answering: frozenset[str]) -> list[str]:
        """Who of those answering holds a share of the secret that is to be opened."""
        return [
            name
            for name in self.roster.holders(dealer)
            if name in answering and (name != dealer or dealer in self.survivors)
        ]


def require_holders(hearing: Hearing, answering: frozenset[str], when: str) -> None:
    """Abort if some secret has fewer holders left than the threshold."""
    threshold = hearing.roster.plan.threshold
    counts = {name: len(hearing.holders(name, answering)) for name in hearing.needed()}
    lacking = [name for name, count in counts.items() if count < threshold]
    if lacking:
        raise Aborted(
            f"{when}, {threshold} shares are needed to open a mask, but there are fewer for "
            f"{listed(lacking)} ({min(counts[name] for name in lacking)} for one of them): too "
            "many clients dropped out. Nothing was learnt or applied; open another round"
        )


def masks_left(hearing: Hearing) -> tuple[list[bytes], list[bytes]]:
    """The keys of the masks that were added, and of those that were subtracted, in the sum over the
    survivors.
    """
    require_holders(hearing, frozenset(hearing.revealed), "when shares were revealed")
    roster, plus, minus = hearing.roster, list[bytes](), list[bytes]()
    for name in hearing.needed():
        if name in hearing.survivors:
            plus.append(roster.context.self_key(_seed(hearing, name), name))
            continue
        private = _mask(hearing, name)
        for survivor in hearing.survivors.intersection(roster.neighbours(name)):
            key = roster.context.pair_key(private, roster.join(survivor).mask, name, survivor)
            (plus if survivor < name else minus).append(key)
    return plus, minus


def listed(names: list[str] | frozenset[str]) -> str:
    """Some names, and how many more there are."""
    ordered = sorted(names)
    return (
        ", ".join(ordered[:_FEW])
        + (f" and {len(ordered) - _FEW} more" if len(ordered) > _FEW else "")
        if ordered
        else "nobody"
    )


def _seed(hearing: Hearing, name: str) -> bytes:
    seed, context = _recovered(hearing, name), hearing.roster.context
    if seed is None or context.digest(seed, "seed", name) != hearing.dealt[name].seed:
        raise Aborted(_wrong(name, "self seed"), name)
    return seed


def _mask(hearing: Hearing, name: str) -> Private:
    raw = _recovered(hearing, name)
    if raw is None or (private := Private(raw)).public != hearing.roster.join(name).mask:
        raise Aborted(_wrong(name, "mask key"), name)
    return private


def _recovered(hearing: Hearing, dealer: str) -> bytes | None:
    numbers = {holder: number for number, holder in enumerate(hearing.roster.holders(dealer), 1)}
    holders = hearing.holders(dealer, frozenset(hearing.revealed))
    shares = {numbers[holder]: hearing.revealed[holder][dealer] for holder in holders}
    try:
        return shamir.recover(shares, hearing.roster.plan.threshold)
    except FormatError:  # the dealer is named by who asked
        return None


def _wrong(name: str, what: str) -> str:
    return (
        f"{name} dealt wrong shares: each is the one it committed to, but together they do not "
        f"give its {what}. Nothing was "
        f"learnt or applied; look into {name} before opening another round with it"
    )


_KINDS: dict[Phase, tuple[ClientKind, ...]] = {
    "joining": ("join",),
    "sharing": ("shares",),
    "masking": ("masked", "complaint", "justification"),
    "agreeing": ("agreed",),
    "revealing": ("reveal",),
    "done": (),
}


class Collector:
    """One round at the server.

    `keys` gives the enrolled key of a client, or raises LookupError or RefusedError.

    `length` is the number of entries of a vector; without it, the first masked vector says how long
    the others must be.
    """

    def __init__(
        self,
        opening: Opening,
        rules: Aggregation,
        keys: Callable[[str], PublicKey],
        *,
        length: int | None = None,
    ) -> None:
        self.opening, self.rules = opening, rules
        self.phase: Phase = "joining"
        self._keys = keys
        self._length = length
        self._digests: dict[tuple[str, str], str] = {}  # of messages taken, by kind and client
        self._joins: dict[str, tuple[Join, bytes]] = {}
        self._roster: Roster | None = None
        self._dealt: dict[str, Dealt] = {}
        self._shares: dict[str, SignedHeader] = {}  # by which they were dealt
        self._dealers: frozenset[str] = frozenset()  # whose shares arrived in time
        self._complaints: dict[str, tuple[bytes, frozenset[str]]] = {}  # by holder; of whom
        self._justified: dict[str, dict[str, bytes]] = {}  # by holder, then by dealer
        self._is_heard = False  # no complaint is taken or answered any more
        self._masked: dict[str, SignedHeader] = {}
        self._hidden: MaskedVector | None = None
        self._survivors: frozenset[str] = frozenset()
        self._told_survivors = b""
        self._agreed: dict[str, bytes] = {}  # signatures
        self._told_agreements = b""
        self._revealed: dict[str, dict[str, bytes]] = {}
        self._sum: Wide | None = None

    # -- what it shows -----------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[str, ...]:
        """Who is in the roster; while joining, who has joined so far."""
        return tuple(sorted(self._joins))

    @property
    def awaited(self) -> frozenset[str]:
        """The clients that have not answered in this phase; empty while joining."""
        answered = {
            "sharing": self._dealt.keys(),
            "masking": self._masked.keys(),
            "agreeing": self._agreed.keys(),
            "revealing": self._revealed.keys(),
        }
        awaited = self._members().difference(answered.get(self.phase, ()))
        if self.phase != "masking":
            return awaited
        if self._is_heard:
            return awaited.difference(self.unanswered)
        return awaited.union(*self.unanswered.values())

    @property
    def unanswered(self) -> dict[str, frozenset[str]]:
        """By holder that has complained of parcels and waits: which dealers have not answered."""
        waiting = {
            holder: dealers.difference(self._justified.get(holder, ()))
            for holder, (_, dealers) in self._complaints.items()
        }
        return {holder: dealers for holder, dealers in waiting.items() if dealers}

    @property
    def silent(self) -> frozenset[str]:
        """Those that could have answered, and have not: not who waits for the answer to its
        complaint, unless it owes one itself.
        """
        unanswered = self.unanswered if self.phase == "masking" else {}
        owing = frozenset[str]().union(*unanswered.values())
        return self.awaited.difference(unanswered) | owing

    def end_complaints(self) -> None:
        """From now on no complaint is answered: who waits for an answer is awaited no longer."""
        self._is_heard = True

    @property
    def roster(self) -> Roster:
        """The roster; ProtocolError while clients are joining."""
        return self._known()

    @property
    def roster_digest(self) -> str:
        """SHA-256 of the roster."""
        return self._known().digest

    @property
    def exposed(self) -> frozenset[Part]:
        """The parts of those that say in their join that it hides nobody."""
        joins = (join for join, _ in self._joins.values())
        return frozenset((join.name, join.sequence) for join in joins if join.exposed)

    @property
    def included(self) -> list[tuple[str, int]]:
        """Whose vectors are in the sum, with their sequence numbers; empty before the survivors are
        known.
        """
        return self._known().sequences(sorted(self._survivors)) if self._survivors else []

    def sum(self) -> Wide:
        """The exact sum of the vectors of those included."""
        if self._sum is None:
            raise ProtocolError(f"there is no sum yet: the round is at {self.phase}")
        return self._sum

    @property
    def agreed(self) -> dict[str, bytes]:
        """Who has signed the survivors, with the signature."""
        return dict(self._agreed)

    def records(self) -> RoundRecords:
        """What clients signed to have dealt and sent, for the arbiter of a sum that was false."""
        clients = sorted(self._survivors)
        return RoundRecords(
            self._known().data,
            {client: self._shares[client] for client in clients},
            {client: self._masked[client] for client in clients},
            {client: self._deliveries(client) for client in clients},
        )

    def say(self, client: str) -> bytes | None:
        """What this client must know in this phase: roster, deliveries, survivors or agreements; or
        a complaint of its parcel, which comes first.

        None if it has no part in it, or waits for the answer to its own complaint.
        """
        if client not in self._members():
            return None
        if self.phase == "sharing":
            return self._known().data
        if self.phase == "masking":
            return self._told_masking(client)
        return self._told_survivors if self.phase == "agreeing" else self._told_agreements

    def _told_masking(self, client: str) -> bytes | None:
        unanswered = self.unanswered
        for holder, dealers in unanswered.items():
            if client in dealers and not self._is_heard:
                return self._complaints[holder][0]
        return None if client in unanswered else self._deliveries(client)

    def _members(self) -> frozenset[str]:
        """From whom a message is expected in this phase."""
        members = {
            "sharing": frozenset(self._joins),
            "masking": self._dealers,
            "agreeing": self._survivors,
            "revealing": frozenset(self._agreed),
        }
        return members.get(self.phase, frozenset())

    def _known(self) -> Roster:
        if self._roster is None:
            raise ProtocolError("there is no roster yet: clients are still joining")
        return self._roster

    def _deliveries(self, client: str) -> bytes:
        senders = [name for name in self._known().neighbours(client) if name in self._dealers]
        header = {"client": client, "kind": "deliveries", "senders": senders} | self._round()
        answers = self._justified.get(client, {})
        justified = sorted(answers)
        pieces = [self._parcel(sender, client).to_bytes() for sender in senders]
        pieces += [answers[dealer] for dealer in justified]
        return messages.write_server_message(
            header | ({"justified": justified} if justified else {}), b"".join(pieces)
        )

    def _parcel(self, dealer: str, holder: str) -> Parcel:
        place = bisect_left(self._known().neighbours(dealer), holder)  # they are sorted
        return self._dealt[dealer].parcels[place]

    def _round(self) -> dict[str, str]:
        return {
            "federation": self.opening.federation,
            "roster": self._known().digest,
            "round": self.opening.round,
        }

    # -- taking ------------------------------------------------------------------------------------

    def take(self, data: bytes | memoryview) -> str:
        """Hear a client's message; who said it.

        RefusedError says why it was not taken, and nothing has changed.
        """
        try:
            message = messages.read_client_message(data)
        except FormatError as problem:
            raise RefusedError("malformed", f"{problem}") from problem
        self._require_sender(message)
        what = f"{message.kind} {message.header.get('holder', '')}"  # one answer to each complaint
        earlier_digest = self._digests.get((what, message.client))
        if earlier_digest == message.signed.digest:
            return message.client
        if earlier_digest is not None:
            raise RefusedError(
                "sequence-reused",
                (
                    f"{message.client} has sent another {message.kind} in this round: only the "
                    "first one counts. Wait for the next round"
                ),
                kind=message.kind,
            )
        self._require_turn(message)
        take = {
            "join": self._take_join,
            "shares": self._take_shares,
            "complaint": self._take_complaint,
            "justification": self._take_justification,
            "masked": self._take_masked,
            "agreed": self._take_agreed,
            "reveal": self._take_reveal,
        }
        try:
            take[message.kind](message)
        except FormatError as problem:
            raise RefusedError(
                "malformed", f"the {message.kind} of {message.client} cannot be read: {problem}"
            ) from problem
        self._digests[what, message.client] = message.signed.digest
        return message.client

    def _require_sender(self, message: ClientMessage) -> None:
        header, client = message.header, message.client
        if header["federation"] != self.opening.federation:
            raise RefusedError(
                "wrong-federation",
                f"the {message.kind} of {client} is for federation {header['federation']}",
            )
        if header["round"] != self.opening.round:
            raise RefusedError(
                "wrong-round",
                (
                    f"the {message.kind} of {client} is for round {header['round']}, not "
                    f"{self.opening.round}: sync first"
                ),
            )
        try:
            key = self._keys(client)
        except LookupError as problem:
            raise RefusedError(
                "unknown-actor", f"nobody of the name {client} is enrolled here"
            ) from problem
        try:
            message.signed.verify(key)
        except EvidenceError as problem:
            raise RefusedError(
                "bad-signature",
                f"the {message.kind} of {client} is not signed by its key: {problem}",
            ) from problem

    def _require_turn(self, message: ClientMessage) -> None:
        kind, client = message.kind, message.client
        if kind not in _KINDS[self.phase]:
            raise RefusedError(
                "wrong-phase",
                (
                    f"the {kind} of {client} is not expected while the round is at {self.phase}: "
                    "wait for the next round"
                ),
            )
        if kind == "join":
            return
        if client not in self._members():
            raise RefusedError(
                "not-allowed", f"{client} has no part in this round any more: wait for the next one"
            )
        if message.header["roster"] != self._known().digest:
            raise RefusedError(
                "wrong-round", f"the {kind} of {client} belongs to another roster than this round's"
            )
        joined = self._joins[client][0].sequence
        if message.header["sequence"] != joined:
            raise RefusedError(
                "sequence-reused",
                (
                    f"{client} joined with number {joined}, but its {kind} has "
                    f"{message.header['sequence']}"
                ),
            )

    def _take_join(self, message: ClientMessage) -> None:
        opening, rules = messages.opening_of(message.header), messages.rules_of(message.header)
        if (opening.data_digest, opening.labels_digest) != (
            self.opening.data_digest,
            self.opening.labels_digest,
        ):
            raise RefusedError(
                "wrong-spec",
                (
                    f"{message.client} joins with another spec of data or labels than this "
                    "round's: sync first"
                ),
            )
        if rules != self.rules:
            raise RefusedError(
                "wrong-spec",
                (
                    f"{message.client} joins under other rules of aggregation than this round's: "
                    "sync first"
                ),
            )
        if opening.purpose != self.opening.purpose:
            raise RefusedError(
                "wrong-round",
                (
                    f"{message.client} joins for {opening.purpose}, but the round is for "
                    f"{self.opening.purpose}"
                ),
            )
        messages.pieces(message.body, 0, 1, "a join")
        self._joins[message.client] = (Join.from_header(message.header), message.signed.signature)

    def _take_shares(self, message: ClientMessage) -> None:
        header, count = message.header, len(self._known().neighbours(message.client))
        dealt_parcels = parcels(message.body, count, "the parcels of shares")
        self._dealt[message.client] = Dealt(
            tuple(dealt_parcels), bytes.fromhex(header["seed"]), bytes.fromhex(header["own"])
        )
        self._shares[message.client] = message.signed

    def _take_complaint(self, message: ClientMessage) -> None:
        holder = message.client
        dealers = messages.names(message.header["dealers"], "the dealers of a complaint")
        bad = parcels(message.body, len(dealers), "the parcels of a complaint")
        if holder in self._masked:
            raise RefusedError(
                "wrong-phase", f"{holder} has used what it was sent, and complains of it"
            )
        sent = self._dealers.intersection(self._known().neighbours(holder))
        if not dealers or not sent.issuperset(dealers):
            raise RefusedError("wrong-round", f"{holder} complains of nobody who dealt it shares")
        if any(
            self._parcel(dealer, holder) != parcel
            for dealer, parcel in zip(dealers, bad, strict=True)
        ):
            raise RefusedError("wrong-round", f"{holder} complains of what it was not sent")
        self._complaints[holder] = message.data, frozenset(dealers)

    def _take_justification(self, message: ClientMessage) -> None:
        dealer, holder = message.client, message.header["holder"]
        if self._is_heard:
            raise RefusedError(
                "wrong-phase", f"{dealer} answers too late for {holder} to go on with it"
            )
        if dealer not in self.unanswered.get(holder, ()):
            raise RefusedError(
                "wrong-round", f"{dealer} answers a complaint that {holder} has not made"
            )
        (content,) = messages.pieces(message.body, 1, JUSTIFIED_BYTES, "the answer to a complaint")
        try:
            justified(
                self._known(), self._parcel(dealer, holder), content, dealer=dealer, holder=holder
            )
        except EvidenceError as problem:
            raise RefusedError("wrong-share", f"{problem}", holder=holder, dealer=dealer) from None
        self._justified.setdefault(holder, {})[dealer] = content

    def _take_masked(self, message: ClientMessage) -> None:
        header, client = message.header, message.client
        if client in self.unanswered:
            raise RefusedError(
                "wrong-phase",
                f"{client} has complained, and waits for the answer: it cannot take part without",
            )
        if header["deliveries"] != hashlib.sha256(self._deliveries(client)).hexdigest():
            raise RefusedError(
                "wrong-round",
                f"the masks of {client} belong to other deliveries than those it was sent",
            )
        masked = MaskedVector.from_bytes(message.body)
        expected = self._length if self._length is not None else masked.length
        if masked.length != expected or header["length"] != masked.length:
            raise RefusedError(
                "malformed",
                f"the masked vector of {client} has {masked.length} entries, not {expected}",
            )
        if self._hidden is None:
            self._hidden = masked.copy()
        else:
            self._hidden.absorb(masked)
        self._length = expected
        self._masked[client] = message.signed

    def _take_agreed(self, message: ClientMessage) -> None:
        self._require_survivors(message, "agrees to")
        messages.pieces(message.body, 0, 1, "an agreement")
        self._agreed[message.client] = message.signed.signature

    def _require_survivors(self, message: ClientMessage, what: str) -> None:
        if message.header["survivors"] != hashlib.sha256(self._told_survivors).hexdigest():
            raise RefusedError(
                "wrong-round",
                f"{message.client} {what} another list of survivors than the one it was sent",
            )

    def _take_reveal(self, message: ClientMessage) -> None:
        holder, roster = message.client, self._known()
        self._require_survivors(message, "reveals shares for")
        dealers = [name for name in roster.holders(holder) if name in self._dealers]
        pieces = messages.pieces(message.body, len(dealers), SHARE_BYTES, "revealed shares")
        shares = {dealer: bytes(share) for dealer, share in zip(dealers, pieces, strict=True)}
        for dealer, share in shares.items():
            is_seed = dealer in self._survivors
            if share_digest(roster.context, is_seed, dealer, holder, share) != self._committed(
                dealer, holder, is_seed
            ):
                raise RefusedError(
                    "wrong-share",
                    f"{holder} revealed a wrong share of the "
                    f"{'self seed' if is_seed else 'mask key'} of {dealer}: it is not the "
                    "one that was dealt, so nothing of this message is used",
                    holder=holder,
                    dealer=dealer,
                )
        self._revealed[holder] = shares

    def _committed(self, dealer: str, holder: str, is_seed: bool) -> bytes:
        if dealer == holder:
            return self._dealt[dealer].own
        parcel = self._parcel(dealer, holder)
        return parcel.seed if is_seed else parcel.mask

    def leave_out(self, clients: Collection[str]) -> None:
        """Take joins back, before the roster is made; those clients have no part in this round."""
        if self.phase != "joining":
            raise ProtocolError(
                f"the round is at {self.phase}: whoever is in its roster stays in it"
            )
        for client in clients:
            self._joins.pop(client, None)

    # -- going on ----------------------------------------------------------------------------------

    def advance(self) -> None:
        """End the phase with those who have answered; Aborted if they are too few, and then nothing
        has changed.
        """
        steps = {
            "joining": self._end_joining,
            "sharing": self._end_sharing,
            "masking": self._end_masking,
            "agreeing": self._end_agreeing,
        }
        if self.phase == "done":
            raise ProtocolError("the round is done: it cannot advance")
        steps.get(self.phase, self._end_revealing)()
        self.phase = PHASES[PHASES.index(self.phase) + 1]

    def _end_joining(self) -> None:
        if len(self._joins) < self.rules.fewest:
            raise Aborted(
                f"{len(self._joins)} clients joined ({listed(frozenset(self._joins))}), but the "
                f"rules ask for {self.rules.fewest}: wait for more, or open another round"
            )
        self._roster = Roster.read(
            Roster.write(self.opening, self.rules, list(self._joins.values()))
        )

    def _end_sharing(self) -> None:
        dealers = frozenset(self._dealt)
        self._require_enough(dealers, "dealt shares")
        require_holders(
            Hearing(self._known(), self._dealt, dealers, {}), dealers, "after shares were dealt"
        )
        self._dealers = dealers

    def _end_masking(self) -> None:
        survivors = frozenset(self._masked)
        self._require_enough(survivors, "sent masked vectors")
        require_holders(
            Hearing(self._known(), self._dealt, survivors, {}),
            survivors,
            "after masked vectors were sent",
        )
        self._survivors = survivors
        self._told_survivors = survivors_message(self._known().context, survivors)

    def _end_agreeing(self) -> None:
        agreed = sorted(self._agreed)
        lacking = self._known().lacking(agreed)
        if lacking:
            raise Aborted(
                f"{lacking} ({listed(self._survivors - set(agreed))} did not). Nothing was learnt "
                "or applied; open another round"
            )
        require_holders(
            Hearing(self._known(), self._dealt, self._survivors, {}),
            frozenset(agreed),
            "after survivors were agreed on",
        )
        header = {
            "clients": agreed,
            "kind": "agreements",
            "survivors": hashlib.sha256(self._told_survivors).hexdigest(),
        }
        self._told_agreements = messages.write_server_message(
            header | self._round(), b"".join(self._agreed[name] for name in agreed)
        )

    def _end_revealing(self) -> None:
        if self._hidden is None:
            raise ProtocolError("there are no masked vectors to open")
        hearing = Hearing(self._known(), self._dealt, self._survivors, self._revealed)
        plus, minus = masks_left(hearing)
        self._sum = self._hidden.opened(plus, minus)
        self._hidden, self._revealed = None, {}

    def _require_enough(self, names: frozenset[str], what: str) -> None:
        fewest, clients = self._known().plan.survivors, self.clients
        if len(names) < fewest:
            owing = frozenset[str]().union(*self.unanswered.values())
            blamed = f"; {listed(owing)} answered no complaint about its shares" if owing else ""
            raise Aborted(
                f"{len(names)} of {len(clients)} clients {what}, but the rules ask for {fewest} "
                f"({listed(frozenset(clients) - names)} dropped out{blamed}). Nothing was learnt "
                "or applied; open another round"
            )
