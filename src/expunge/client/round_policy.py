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
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from expunge.client.settings import checkpoint_text, read_pins
from expunge.client.store import ClientStore
from expunge.client.trust import Peers, Trust, trusted
from expunge.crypto import Envelope, PublicKey, canonical
from expunge.errors import EvidenceError, ProtocolError
from expunge.evidence import Checkpoint, Receipt
from expunge.evidence.receipt import member_of
from expunge.kinds import Purpose
from expunge.ridge.spec import Aggregation
from expunge.secagg import Participant
from expunge.secagg.arbitration import Verdict, parts_of
from expunge.secagg.keys import Context
from expunge.secagg.plan import plan
from expunge.secagg.roster import verify_agreements
from expunge.secagg.unmasking import (
    Decision,
    Narrowed,
    Part,
    may_follow,
    narrowed,
    remaining,
    unexplained,
)
from expunge.wire.carrier import Carrier

_AGREED = "agreed"  # the setting that holds when its part was masked first, and each sum agreed to
_FIRST = "first"  # in it, the time of the former
_RESTORED = "restored"  # and in it, what the log said then of when the server was restored last
_ROSTERS = "rosters"  # the setting that holds the rosters of rounds in which its part was masked
_EVERYTHING = 0  # in place of the number of a request that sends everything anew


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
    def rules(self) -> Aggregation:
        """The federation's; ProtocolError if it has none."""
        rules = self._store.spec.aggregation
        if rules is None:
            raise ProtocolError("this federation does not use secure aggregation")
        return rules

    def keys(self, participant: Participant, roster: bytes) -> dict[str, PublicKey]:
        """The keys that the roster is held against, read from the log as far as it goes now."""
        names = participant.names_in(roster)
        peers = self._peers()
        if self._store.name in peers.gone:
            raise UnsafeRoundError(
                f"the log shows that {self._store.name} has left, and the server asks it to take "
                "part: it could show others what this client holds. Ask the operator"
            )
        if participant.opening.purpose != "change" or not names <= set(peers.keys):
            self._follow_log()
            peers = self._peers()
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
            self._store.remember({"peers": peers.to_text()})
        return peers

    def _follow_log(self) -> None:
        """Advance to the newest checkpoint."""
        content = Envelope.from_bytes(self._trust.checkpoint(), "checkpoint").unverified()
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

    def require_roster(self, participant: Participant) -> None:
        """Mask in no round whose sum this client could not agree to: it need not be asked."""
        if participant.opening.purpose == "change":
            self._require_same(participant, set(participant.roster_parts))

    def require_one_sum(self, participant: Participant) -> None:
        """Agree to one sum only with this client's part in it, and remember it
        (expunge.secagg.unmasking).
        """
        if participant.opening.purpose != "change":
            return  # what is counted already, of all clients
        proposed = self._require_same(participant, set(participant.included or ()))
        if proposed not in self._agreed(participant.sequence):
            self._require_enough(proposed)
            self._remember("revealed", [sorted(map(list, proposed))])
            self._remember(_AGREED, self._recall(_AGREED) | {_name_of(proposed): int(self._now())})

    def _require_same(self, participant: Participant, parts: set[Part]) -> set[Part]:
        """`parts` by what they hold, if they are what the log has left of every sum that this
        client's part is in. The same sum again, as far as it has agreed to it, shows nothing new.
        """
        proposed, agreed = self._identified(parts), self._agreed(participant.sequence)
        for earlier in [*agreed, *self._decided(participant.sequence)]:
            rest = self._narrowed(earlier).parts
            is_same = proposed == rest or (proposed == earlier and earlier in agreed)
            if not is_same and not may_follow(
                rest, proposed, gone=self._gone(), fewest=self.rules.fewest, shown=self._shown()
            ):
                names = sorted({name for name, _ in rest ^ proposed})
                raise UnsafeRoundError(
                    "a round was aborted after its sum may have been unmasked, and this one would "
                    f"differ from it by {', '.join(names)}, whose changes the two sums "
                    "would show: nothing is revealed. Join again when the same clients do; one "
                    "that stays away for ever must be forgotten by the operator"
                )
        return proposed

    def _agreed(self, sequence: int) -> list[set[Part]]:
        """The sums with this client's part that it has agreed to, and that were not applied."""
        return self._with_part(sequence, map(_parts, self._recall("revealed", [])))

    def _decided(self, sequence: int) -> list[set[Part]]:
        """The false sums with this client's part: others may have agreed without it."""
        decisions = self._decisions() if self._store.recall(_ROSTERS) else ()
        return self._with_part(sequence, (set(one.parts) for one in decisions if one.signers))

    def _with_part(self, sequence: int, sums: Iterable[set[Part]]) -> list[set[Part]]:
        ours = self._identified({(self._store.name, sequence)})
        return [parts for parts in sums if ours <= parts]

    def masked(self, participant: Participant, *, first: bool) -> None:
        """Remember the roster of a round in which this client's part may be in the sum: entries
        about another roster are none about that sum. `first`: the part was never masked before.
        """
        rosters = {} if first else self._recall(_ROSTERS)
        if not rosters:
            times = {_FIRST: int(self._now()), _RESTORED: self._peers().restored}
            self._remember(_AGREED, times)
        roster = [participant.roster_digest, len(participant.roster_parts)]
        self._remember(_ROSTERS, rosters | {participant.opening.round: roster})

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
        bound = [*self._agreed(sequence), *self._decided(sequence)]
        for left in map(self._narrowed, bound):
            if left.disputed and remaining(left.parts, gone) == left.parts:
                return left.disputed
        return ""

    def _narrowed(self, agreed: set[Part]) -> Narrowed:
        """What the log has left of a sum that this client agreed to.

        It is read as far as this client has followed it, and not believed about who was silent
        before the time of the rules has passed by this client's own clock.
        """
        return narrowed(agreed, self._store.name, self._decisions(), self.rules)

    def _decisions(self) -> list[Decision]:
        """What the log decides about sums that this client's part may be in, and is due."""
        entries = self._peers().decisions
        return [
            decision
            for place, entry in enumerate(entries)
            if (decision := self._decision(entry, entries[:place])) is not None
        ]

    def _decision(
        self, entry: dict[str, Any], earlier: Sequence[dict[str, Any]]
    ) -> Decision | None:
        kind, aggregation = entry["kind"], entry["aggregation"]
        rosters = self._recall(_ROSTERS)
        if kind == "voided":
            if rosters.get(aggregation) != [entry["roster"], entry["size"]]:
                return None
            return Decision(
                kind,
                aggregation,
                self._listed(entry["clients"]),
                signers=frozenset(entry["agreed"]),
                size=entry["size"],
                unexplained=unexplained(earlier),
            )
        if kind == "judged":
            verdict = self._verdict(entry)
            if [verdict.roster] != rosters.get(aggregation, [])[:1]:
                return None
            parts = frozenset(self._identified(set(verdict.parts)))
            return Decision(kind, aggregation, parts, frozenset(verdict.false))
        parts, times = self._listed(entry["clients"]), self._recall(_AGREED)
        since = times.get(_name_of(parts), times.get(_FIRST, 0))
        if self._now() < since + self.rules.set_aside_after:
            return None
        return Decision("excluded", aggregation, parts, frozenset(entry["excluded"]))

    def _listed(self, members: list[dict[str, Any]]) -> frozenset[Part]:
        return frozenset(self._identified(set(parts_of(members))))

    def _verify(self, entry: dict[str, Any], keys: Mapping[str, str]) -> None:
        """Raise EvidenceError unless a false sum was agreed to by those that the log says so of, a
        quorum of its roster, and a verdict is the arbiter's.
        """
        if entry["kind"] == "judged":
            self._verdict(entry)
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

    def _identified(self, parts: set[Part]) -> set[Part]:
        """Parts by what they hold: whoever sends all that it holds, sends the same under every
        number.
        """
        composed = self._store.outbox.composed()
        if composed is None or not composed.reset:
            return parts
        return {(name, _EVERYTHING) for name, _ in parts}

    def release(self, sequence: int) -> None:
        """What has been applied under this number binds no longer."""
        settled = {(self._store.name, sequence), (self._store.name, _EVERYTHING)}
        earlier = map(_parts, self._recall("revealed", []))
        kept = [sorted(map(list, parts)) for parts in earlier if parts.isdisjoint(settled)]
        self._remember("revealed", kept)
        self._store.remember({_ROSTERS: "", _AGREED: ""})

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

    def require_lost(self) -> None:
        """What may be in a sum is taken back only if the server has told everybody by its log that
        it lost what it had, since that was masked.
        """
        self._follow_log()
        restored = self._peers().restored
        if restored in ("", self._recall(_AGREED).get(_RESTORED, "")):
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

    def _shown(self) -> frozenset[Part]:
        """The parts that were excluded: the server may have seen them by that."""
        return frozenset(
            part
            for entry in self._peers().decisions
            if entry["kind"] == "excluded"
            for part in self._listed(entry["clients"])
            if part[0] in entry["excluded"]
        )

    def _require_enough(self, proposed: set[Part]) -> None:
        if len(proposed - self._shown()) < self.rules.fewest:
            raise UnsafeRoundError(
                f"fewer than {self.rules.fewest} clients of this round are hidden: others were "
                "left out of an earlier sum. This client waits for a round with more"
            )

    def receipt(self, participant: Participant, data: bytes) -> Receipt:
        """The receipt of a round, if it is the server's, for this client's part in it, and lists
        those whose sum was unmasked.
        """
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
        if participant.included is not None:
            listed = [(member["client"], member["sequence"]) for member in entry["clients"]]
            if sorted(listed) != sorted(participant.included):
                raise EvidenceError(
                    "the receipt lists other clients than those whose masks this client helped to "
                    "remove"
                )
        return receipt


def _name_of(parts: Set[Part]) -> str:
    """A short name for a sum, among those of one client's part."""
    return hashlib.sha256(canonical.encode(sorted(map(list, parts)))).hexdigest()[:16]


def _parts(members: list[list[Any]]) -> set[Part]:
    return {(str(name), int(sequence)) for name, sequence in members}


def with_article(purpose: Purpose) -> str:
    """The purpose of a round with its article."""
    return "an audit" if purpose == "audit" else f"a {purpose}"
