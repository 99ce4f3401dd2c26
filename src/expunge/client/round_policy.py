"""What a client demands of a round of secure aggregation before it deals shares, before it agrees
to a sum, and of receipts.

Law: the server is believed about who drops out and about nothing else. Keys come from the log or
from pins; an audit or a rebuild must be of all clients that the log shows; and of the sums that its
part is in, a client agrees to one, and then only to what entries of the log have left of it
(`expunge.secagg.unmasking`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from expunge.client.settings import checkpoint_text, read_pins
from expunge.client.store import ClientStore
from expunge.client.trust import UNKNOWN, Peers, Trust, trusted
from expunge.crypto import Envelope, PublicKey, canonical
from expunge.errors import EvidenceError, ProtocolError
from expunge.evidence import Checkpoint, Receipt
from expunge.evidence.receipt import member_of
from expunge.kinds import Purpose, Stage
from expunge.ridge.spec import Aggregation
from expunge.secagg import Participant
from expunge.secagg.arbitration import Verdict, parts_of, verify_masked
from expunge.secagg.keys import Context
from expunge.secagg.plan import plan
from expunge.secagg.roster import Roster, verify_agreements
from expunge.secagg.unmasking import (
    AgreedSum,
    Decision,
    Narrowed,
    Part,
    hides_enough,
    may_follow,
    narrowed,
    remaining,
    unexplained,
)
from expunge.wire.carrier import Carrier

_AGREED = "agreed"  # the setting that holds when its part was masked first, and each sum agreed to
_FIRST = "first"  # in it, the time of the former
_RESTORED = "restored"  # and in it, what the log said then of when the server was restored last
_NOTICED = "noticed"  # and in it, when this client's clock was first behind one of these times
_LOST = "lost"  # the setting that holds the last restore that this client has read of in the log
_ANEW = "anew"  # the setting that holds the last restore since which it has sent everything anew
_ROSTERS = "rosters"  # the setting that holds the rosters of rounds in which its part was masked


class UnsafeRoundError(EvidenceError):
    """A round that the server asks for would show too much: this client does not take part, and
    says why.
    """


class RoundPolicy:
    """The demands that one client makes of a round."""

    def __init__(
        self,
        store: ClientStore,
        carrier: Carrier,
        trust: Trust,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._carrier = carrier
        self._trust = trust
        self._now = now

    @property
    def name(self) -> str:
        """The client's."""
        return self._store.name

    @property
    def rules(self) -> Aggregation:
        """The federation's; ProtocolError if it has none."""
        rules = self._store.spec.aggregation
        if rules is None:
            raise ProtocolError("this federation does not use secure aggregation")
        return rules

    def keys(self, participant: Participant, roster: bytes) -> dict[str, PublicKey]:
        """The keys that the roster is held against, read from the log as far as it goes now."""
        parts = participant.parts_in(roster)
        names, peers = {name for name, _ in parts}, self._peers()
        if self._store.name in peers.gone:
            raise UnsafeRoundError(
                f"the log shows that {self._store.name} has left, and the server asks it to take "
                "part: it could show others what this client holds. Ask the operator"
            )
        if participant.opening.purpose != "change" or not names <= set(peers.keys):
            self._follow_log()
            peers = self._peers()
        if peers.spec != self._store.spec.digest:
            raise UnsafeRoundError(
                "the log shows another spec than the one that this client has from the server, and "
                "the rules of rounds with it: sync again. If that does not help, ask the operator"
            )
        if peers.applied.get(self._store.name, 0) > self._store.sequence:
            raise UnsafeRoundError(
                f"the log shows that request {peers.applied[self._store.name]} of this client has "
                "taken effect, but the server gives no receipt for it: the next sum would show the "
                "changes of those that have one. This client keeps out of rounds; ask the operator"
            )
        if self._store.name in peers.barred:
            raise UnsafeRoundError(
                f"the arbiter found that {self._store.name} sent something false: it takes part "
                "in no round. The operator can forget it"
            )
        if names & peers.barred:
            raise UnsafeRoundError(
                f"{', '.join(sorted(names & peers.barred)[:5])} takes part in this round, and was "
                "barred by a verdict of the arbiter: this client keeps out of it"
            )
        if participant.opening.purpose != "change" and peers.barred:
            raise UnsafeRoundError(
                f"{with_article(participant.opening.purpose)} while "
                f"{', '.join(sorted(peers.barred)[:5])} is barred would show what it held, as what "
                "the ledger has more: this client waits until the operator has forgotten it"
            )
        if participant.opening.purpose == "audit" and peers.going:
            raise UnsafeRoundError(
                f"an audit while {', '.join(sorted(peers.going)[:5])} is being forgotten would "
                "show what it held, as what the ledger has more: this client waits for the rebuild"
            )
        if participant.opening.purpose != "change" and names != peers.active:
            others = ", ".join(sorted(names ^ peers.active)[:5])
            raise UnsafeRoundError(
                f"{with_article(participant.opening.purpose)} must be of all clients that the "
                f"log shows, and this round differs by {others}: the sum would show those that "
                "are missing, so this client keeps out of it"
            )
        ahead = [name for name, number in sorted(parts) if number != peers.applied.get(name, 0)]
        if participant.opening.purpose != "change" and ahead:
            raise UnsafeRoundError(
                f"{with_article(participant.opening.purpose)} must be of what the log shows, and "
                f"{', '.join(ahead[:5])} has sent more or less than the log that this client is "
                "shown: the sum would show the changes of some. This client keeps out of it"
            )
        return self._trusted(peers)

    def pins(self) -> dict[str, PublicKey]:
        """The keys of the other clients, as far as this client has read the log."""
        return self._trusted(self._peers())

    def _trusted(self, peers: Peers) -> dict[str, PublicKey]:
        return trusted(peers, read_pins(self._store.recall("pins")))

    def _peers(self) -> Peers:
        if self._store.checkpoint[0] == 0:  # a new client has seen nothing of the log
            self._follow_log()
        size, root = self._store.checkpoint
        cached = Peers.from_text(self._store.recall("peers"))
        peers = cached.read_on(self._carrier.entries, size, root, self._verify)
        if peers != cached:
            self._store.remember({"peers": peers.to_text(), **self._noted(cached, peers)})
        return peers

    def _noted(self, cached: Peers, peers: Peers) -> dict[str, str]:
        """For the settings: that the log shows a restore which this client has not seen. Nothing
        is known of those before the log was read first.
        """
        is_known = len(cached.keys) > 0 and cached.restored != UNKNOWN
        is_new = is_known and peers.restored != cached.restored
        return {_LOST: peers.restored} if is_new else {}

    def require_sent_anew(self, participant: Participant, *, is_bound: bool) -> None:
        """After a restore, who has not sent everything anew does that first, and is in no sum of
        all before: else a server that says in its log that it was restored could choose whom it
        leaves out of an audit.
        """
        name, peers = self._store.name, self._peers()
        is_away = peers.states.get(name) == "away"
        if is_away and participant.opening.purpose == "change":
            if not self._sends_everything():
                raise UnsafeRoundError(
                    "the log shows that the server was restored, and the server asks for less than "
                    "everything that this client holds: it keeps out of rounds. Ask the operator"
                )
            if is_bound and self.is_superseded():
                raise UnsafeRoundError(
                    "the log shows that the server was restored since this client's part was "
                    "masked: sync again. If that does not help, ask the operator"
                )
        is_noted = self._store.recall(_LOST) == peers.restored
        if is_noted and not is_away and self._store.recall(_ANEW) != peers.restored:
            raise UnsafeRoundError(
                f"the log shows that the server was restored, and that {name} has sent everything "
                "anew since, which it has not: this client keeps out of rounds. Ask the operator"
            )

    def _follow_log(self) -> None:
        """Advance to the newest checkpoint."""
        content = Envelope.from_bytes(self._trust.checkpoint(), "checkpoint").unverified()
        with self._store.outbox.turn:
            newest = self._trust.follow(Checkpoint.from_json(content))
            self._store.remember({"checkpoint": checkpoint_text(*newest)})

    def require_all(self, participant: Participant) -> None:
        """The sum of an audit or a rebuild must include every client: otherwise it would show
        who is missing, as what the ledger has more.
        """
        if participant.opening.purpose != "change":
            missing = self._peers().active - {name for name, _ in participant.included or ()}
            if missing:
                raise UnsafeRoundError(
                    f"{', '.join(sorted(missing)[:5])} dropped out of a round that needs all "
                    "clients"
                )

    def require_unchanged(self, participant: Participant) -> None:
        """Go on only with what the round was joined for: under its labels, so that entries of the
        vector mean the same in every sum; and in an audit or a rebuild, while this client has no
        other number, which was compared with the others'.
        """
        if participant.opening.labels_digest != self._store.spec.labels_digest:
            raise UnsafeRoundError(
                "the labels were amended since this client joined the round, and a sum under the "
                "new ones could be subtracted: it masks nothing in it, and joins the next one"
            )
        if participant.opening.purpose != "change" and participant.sequence != self._store.sequence:
            raise UnsafeRoundError(
                f"this client has changed something since it joined "
                f"{with_article(participant.opening.purpose)}, and the sum would show that: it "
                "masks nothing in it, and joins the next one"
            )

    def require_roster(self, participant: Participant) -> None:
        """Mask in no round whose sum this client could not agree to: it need not be asked."""
        if participant.opening.purpose == "change":
            roster = _known_roster(participant)
            self._require_allowed(participant, roster, roster.parts, self._gone())

    def require_one_sum(self, participant: Participant) -> None:
        """Agree to one sum only with this client's part in it, and remember it
        (expunge.secagg.unmasking).
        """
        if participant.opening.purpose != "change":
            return  # what is counted already, of all clients
        roster, proposed = _known_roster(participant), frozenset(participant.included or ())
        self._require_allowed(participant, roster, proposed, self._gone())
        if proposed not in self._agreed(participant.sequence):
            kept = self._recall("revealed", [])
            exposed = proposed & (roster.exposed | self.shown())
            self._remember("revealed", [*kept, _record(proposed, exposed)])
            self._remember(_AGREED, self._recall(_AGREED) | {_name_of(proposed): int(self._now())})

    def is_exposed(self, sequence: int) -> bool:
        """Whether this client's part hides nobody any more: few are left of a sum that it is in, or
        the log shows that it was excluded from one, and the time of the rules has passed.
        """
        is_bound = self._store.recall(_ROSTERS) or self._recall("revealed", [])
        return bool(is_bound) and self._is_exposed(sequence, self._gone())

    def _is_exposed(self, sequence: int, gone: frozenset[str]) -> bool:
        ours = (self._store.name, sequence)
        return any(
            one.kind == "excluded" and ours in one.parts and ours[0] in one.out
            for one in self._decisions()
        ) or any(
            bound.earlier.is_few(remaining(self._narrowed(bound).parts, gone), self.rules.fewest)
            for bound in self._bound(sequence)
        )

    def _require_allowed(
        self, participant: Participant, roster: Roster, parts: frozenset[Part], gone: frozenset[str]
    ) -> None:
        """Raise UnsafeRoundError unless these parts are what the log has left of every sum that
        this client's part is in, or follow it, and hide enough clients. The same sum again, as far
        as it has agreed to it, shows nothing new.
        """
        sequence, marked, shown = participant.sequence, roster.exposed, self.shown()
        if self._is_exposed(sequence, gone) and (self._store.name, sequence) not in marked:
            raise UnsafeRoundError(
                "the log has left few of a sum with this client's change since it joined this "
                "round, and others are not hidden by it: it joins the next one and says so"
            )
        for bound in self._bound(sequence):
            left = self._narrowed(bound).parts
            is_again = bound.is_agreed and parts == bound.earlier.parts
            if not (is_again or parts == left) and not may_follow(
                bound.earlier,
                remaining(left, gone),
                parts,
                fewest=self.rules.fewest,
                marked=marked,
                shown=shown,
            ):
                names = sorted({name for name, _ in left ^ parts})
                raise UnsafeRoundError(
                    "a round was aborted after its sum may have been unmasked, and this one would "
                    f"differ from it by {', '.join(names)}, whose changes the two sums "
                    "would show: nothing is revealed. Join again when the same clients do; one "
                    "that stays away for ever must be forgotten by the operator"
                )
        if parts not in self._agreed(sequence) and not hides_enough(
            parts, roster.parts, self.rules, marked=marked, shown=shown
        ):
            raise UnsafeRoundError(
                f"fewer than {self.rules.fewest} clients of this round, or fewer than must agree "
                "to its sum, are hidden: others are few that are left of an earlier sum, or were "
                "excluded from one. This client waits for a round with more"
            )

    def _bound(self, sequence: int) -> list[_Bound]:
        """The sums that this client's part is in, and that were not applied: those that it agreed
        to, and false ones, to which others may have agreed without it.
        """
        ours = {(self._store.name, sequence)}
        kept = map(_read_record, self._recall("revealed", []))
        bound = [_Bound(earlier) for earlier in kept if ours <= earlier.parts]
        decisions = self._decisions() if self._store.recall(_ROSTERS) else ()
        false = [one for one in decisions if one.kind == "voided" and ours <= one.parts]
        return bound + [_Bound(self._false_sum(one), is_agreed=False) for one in false]

    def _false_sum(self, voided: Decision) -> AgreedSum:
        _, *exposed = _split(self._recall(_ROSTERS)[voided.aggregation])
        hiding = remaining(voided.parts, frozenset().union(*exposed))
        return AgreedSum(voided.parts, voided.parts - hiding)

    def _agreed(self, sequence: int) -> list[frozenset[Part]]:
        """The sums with this client's part that it has agreed to, and that were not applied."""
        bound = self._bound(sequence)
        return [one.earlier.parts for one in bound if one.is_agreed]

    def _sends_everything(self) -> bool:
        composed = self._store.outbox.composed()
        return composed is not None and composed.reset

    def masked(self, participant: Participant, *, first: bool) -> None:
        """Remember the roster of a round in which this client's part may be in the sum: entries
        about another roster are none about that sum. `first`: the part was never masked before.
        """
        rosters = {} if first else self._recall(_ROSTERS)
        if not rosters:
            times = {_FIRST: int(self._now()), _RESTORED: self._peers().restored}
            self._remember(_AGREED, times)
        roster = _known_roster(participant)
        known = [roster.digest, len(roster.names), sorted(name for name, _ in roster.exposed)]
        self._remember(_ROSTERS, rosters | {participant.opening.round: known})

    def _recall(self, name: str, usual: Any = None) -> Any:
        """A JSON value of the settings; an empty object, or what is `usual`, if there is none."""
        text = self._store.recall(name)
        return canonical.decode(text.encode("ascii")) if text else {} if usual is None else usual

    def _remember(self, name: str, value: object) -> None:
        self._store.remember({name: canonical.encode(value).decode("ascii") if value else ""})

    def disputed(self, sequence: int) -> str:
        """The round whose sum was false and is in dispute, with this client's part in it; or ""."""
        if not self._store.recall(_ROSTERS):
            return ""
        gone = self._gone()
        for left in map(self._narrowed, self._bound(sequence)):
            if left.disputed and remaining(left.parts, gone) == left.parts:
                return left.disputed
        return ""

    def _narrowed(self, bound: _Bound) -> Narrowed:
        """What the log has left of a sum that this client's part is in.

        It is read as far as this client has followed it, and not believed about who was silent
        before the time of the rules has passed by this client's own clock.
        """
        return narrowed(bound.earlier.parts, self._store.name, self._decisions(), self.rules)

    def _decisions(self) -> list[Decision]:
        """What the log decides about sums that this client's part may be in, and is due."""
        entries, times = self._peers().decisions, self._times()
        return [
            decision
            for place, entry in enumerate(entries)
            if (decision := self._decision(entry, entries[:place], times)) is not None
        ]

    def _decision(
        self, entry: dict[str, Any], earlier: Sequence[dict[str, Any]], times: Mapping[str, Any]
    ) -> Decision | None:
        kind, aggregation = entry["kind"], entry["aggregation"]
        rosters = self._recall(_ROSTERS)
        if kind == "voided":
            known, *exposed = _split(rosters.get(aggregation, []))
            if known != [entry["roster"], entry["size"]]:
                return None
            return Decision(
                kind,
                aggregation,
                parts_of(entry["clients"]),
                signers=frozenset(entry["agreed"]).difference(*exposed),
                size=entry["size"],
                unexplained=unexplained(earlier),
            )
        if kind == "judged":
            verdict = self._verdict(entry)
            if [verdict.roster] != rosters.get(aggregation, [])[:1]:
                return None
            return Decision(kind, aggregation, verdict.parts, frozenset(verdict.false))
        parts = parts_of(entry["clients"])
        since = times.get(_name_of(parts), times.get(_FIRST, 0))
        if self._now() < since + self.rules.set_aside_after:
            return None
        return Decision("excluded", aggregation, parts, frozenset(entry["excluded"]))

    def _times(self) -> dict[str, Any]:
        """When this client agreed to each sum, and masked its part first. If such a time is yet to
        come, the clock was ahead then, or is behind now: nobody knows, so it is when that was seen
        first, until the clock has passed it.
        """
        times: dict[str, Any] = self._recall(_AGREED)
        now = int(self._now())
        noticed = times.pop(_NOTICED, None)
        ahead = {key for key, at in times.items() if isinstance(at, int) and at > now}
        if ahead and (noticed is None or noticed > now):
            noticed = now
            self._remember(_AGREED, times | {_NOTICED: now})
        elif not ahead and noticed is not None:
            self._remember(_AGREED, times)
        return times | dict.fromkeys(ahead, noticed)

    def _verify(self, entry: dict[str, Any], keys: Mapping[str, str]) -> None:
        """Raise EvidenceError unless a false sum was agreed to by those that the log says so of, a
        quorum of its roster, and a verdict is the arbiter's, about clients that were in the round.
        """
        if entry["kind"] == "judged":
            known = {name: PublicKey.from_text(key) for name, key in keys.items()}
            verify_masked(entry.get("masked", {}), self._verdict(entry), known)
        elif entry["kind"] == "voided":
            verify_agreements(
                Context(self._store.federation, entry["aggregation"], entry["roster"]),
                parts_of(entry["clients"]),
                {name: bytes.fromhex(text) for name, text in entry["agreed"].items()},
                {name: PublicKey.from_text(key) for name, key in keys.items()},
                quorum=plan(self.rules, max(entry["size"], len(entry["clients"]))).quorum,
            )

    def _verdict(self, entry: dict[str, Any]) -> Verdict:
        """The verdict in an entry of the log; EvidenceError unless the arbiter signed it."""
        verdict = Verdict.read(Envelope.from_json(entry["verdict"], "verdict"), self.rules.arbiter)
        if (verdict.federation, verdict.aggregation) != (
            self._store.federation,
            entry["aggregation"],
        ):
            raise EvidenceError("the log shows a verdict about another round than it says")
        return verdict

    def release(self) -> None:
        """What has been applied binds no longer, nor what it took the place of."""
        self._store.remember({"revealed": "", _ROSTERS: "", _AGREED: ""})

    def note_sent_anew(self) -> None:
        """What was masked was everything, and has taken effect."""
        self._store.remember({_ANEW: self._recall(_AGREED).get(_RESTORED, "")})

    def require_restored(self) -> None:
        """A server that asks for everything again could subtract it from what it has: it must have
        told everybody by its log that it lost what it had.
        """
        self._follow_log()
        if self._peers().states.get(self._store.name) != "away":
            raise UnsafeRoundError(
                "the server asks for everything that this client holds, as if it had been restored "
                "from a backup, but its log does not show that: nothing is sent. Ask its operator"
            )

    def require_forgotten(self) -> None:
        """Who erases what the server still counts would show it to a server that lies, in the next
        audit: that it was forgotten must be told to everybody by the log, who then keep it out.
        """
        self._follow_log()
        if self._store.name not in self._peers().gone:
            raise UnsafeRoundError(
                "the server says that it knows this client no longer, but its log does not show "
                "that: nothing is erased. Ask its operator"
            )

    def is_superseded(self) -> bool:
        """Whether the log shows another restore than when this client's part was masked first; if
        that was not noted, by an earlier version, it is as it was.
        """
        return _RESTORED in self._recall(_AGREED) and self.is_lost()

    def is_lost(self) -> bool:
        """Whether the log shows a restore since this client's part was masked first."""
        self._follow_log()
        return self._peers().restored not in ("", self._recall(_AGREED).get(_RESTORED, ""))

    def require_lost(self) -> None:
        """What may be in a sum is taken back only if the server has told everybody by its log that
        it lost what it had, since that was masked.
        """
        if not self.is_lost():
            raise UnsafeRoundError(
                "the server asks for another request in place of one that may be in a sum which it "
                "has seen, as if it had been restored from a backup since, but its log does not "
                "show that: nothing is taken back or sent. Ask its operator"
            )

    def _gone(self) -> frozenset[str]:
        """Who takes part in no sum any more."""
        self._follow_log()
        peers = self._peers()
        return peers.gone | peers.barred

    def shown(self) -> frozenset[Part]:
        """The parts that were excluded: the server may have seen them by that. Whoever believes
        this of others can only ask for more of them.
        """
        return frozenset(
            part
            for entry in self._peers().decisions
            if entry["kind"] == "excluded"
            for part in parts_of(entry["clients"])
            if part[0] in entry["excluded"]
        )

    def receipt(self, participant: Participant, data: bytes) -> Receipt:
        """The receipt of a round, if it is the server's, for this client's part in it."""
        envelope = Envelope.from_bytes(data, "receipt")
        self._trust.meet(envelope)
        receipt = Receipt.read(envelope, self._trust.chain)
        self._trust.require_ours(receipt.federation)
        entry = receipt.logged.entry
        ours = (self._store.name, participant.sequence)
        if not receipt.is_of_round or (receipt.client, receipt.sequence) != ours:
            raise EvidenceError("the receipt is not for the round that this client took part in")
        joined = member_of(entry, receipt.client)["request"]
        if (entry["aggregation"], joined) != (participant.opening.round, participant.join_digest):
            raise EvidenceError(
                "the receipt is for another round than the one that this client took part in"
            )
        return receipt

    def require_listed(self, participant: Participant, receipt: Receipt) -> None:
        """Raise EvidenceError unless the receipt lists those whose masks this client helped to
        remove; or if it was not asked, those to whose sum it could have agreed.
        """
        listed = parts_of(receipt.logged.entry["clients"])
        if participant.included is not None:
            if listed != set(participant.included):
                raise EvidenceError(
                    "the receipt lists other clients than those whose masks this client helped to "
                    "remove"
                )
            return
        if participant.phase in UNMASKED:
            raise EvidenceError("the receipt is for a part that this client has not masked")
        roster = participant.roster
        if roster is None:
            return  # of version 1, which did not keep it
        if not listed <= roster.parts or len(listed) < roster.plan.survivors:
            raise EvidenceError(
                f"the receipt lists {len(listed)} clients, and the sum of this round must be of "
                f"{roster.plan.survivors} or more of the {len(roster.names)} that joined it"
            )
        gone = self._gone() - {name for name, _ in listed}  # they may have left since
        self._require_allowed(participant, roster, listed, gone)


UNMASKED: tuple[Stage, ...] = ("joined", "shared")


@dataclass(frozen=True)
class _Bound:
    """A sum that a client's part is in. What is sent anew after a restore has another number."""

    earlier: AgreedSum
    is_agreed: bool = True


def _record(parts: Set[Part], exposed: Set[Part]) -> dict[str, Any]:
    """A sum that was agreed to, for the settings."""
    return {"exposed": sorted(map(list, exposed)), "parts": sorted(map(list, parts))}


def _read_record(record: Any) -> AgreedSum:
    """The inverse of `_record`. Before there was one, the parts alone were noted."""
    if isinstance(record, dict):
        return AgreedSum(_parts(record["parts"]), _parts(record["exposed"]))
    return AgreedSum(_parts(record))


def _split(known: list[Any]) -> list[list[Any]]:
    """Digest and size of a roster, and who in it was exposed, if that was noted."""
    return [known[:2], *known[2:]]


def _known_roster(participant: Participant) -> Roster:
    roster = participant.roster
    if roster is None:
        raise ProtocolError("there is no roster of this round yet")
    return roster


def _name_of(parts: Set[Part]) -> str:
    """A short name for a sum, among those of one client's part."""
    return hashlib.sha256(canonical.encode(sorted(map(list, parts)))).hexdigest()[:16]


def _parts(members: list[list[Any]]) -> frozenset[Part]:
    return frozenset((str(name), int(sequence)) for name, sequence in members)


def with_article(purpose: Purpose) -> str:
    """The purpose of a round with its article."""
    return "an audit" if purpose == "audit" else f"a {purpose}"
