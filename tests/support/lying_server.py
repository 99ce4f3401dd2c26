"""A server that lies in a round: it tells each client of other dealers and other survivors, and
opens one client's vector if enough shares come of it.

`opens` counts the shares without keys or masks, for searches; `LyingServer` plays the same lies to
real participants. The victim is the first client, those that collude come next.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from expunge.crypto.keys import SIGNATURE_BYTES
from expunge.errors import EvidenceError
from expunge.exact.wide import Wide
from expunge.ridge.spec import Aggregation
from expunge.secagg import MaskedVector, Plan, messages, plan, shamir
from expunge.secagg.keys import Private
from expunge.secagg.parcels import parcels
from expunge.secagg.plan import share_of
from expunge.secagg.roster import Roster
from expunge.secagg.shamir import SHARE_BYTES
from support.secagg import Room, draw_vectors, key_of, name_of, state_of

Marks = NDArray[np.bool_]
Shares = dict[str, dict[int, bytes]]  # by dealer, then by the number of the holder
VICTIM = 0


@dataclass(frozen=True)
class Lies:
    """What each client is told, a row for each: who dealt it shares, and who survived."""

    dealers: Marks
    survivors: Marks
    colluding: int

    @property
    def clients(self) -> int:
        return len(self.dealers)

    @property
    def honest(self) -> list[int]:
        return [VICTIM, *range(1 + self.colluding, self.clients)]

    @property
    def colluders(self) -> range:
        return range(1, 1 + self.colluding)


def trusting_plan(rules: Aggregation, clients: int) -> Plan:
    """A plan for a server that does not lie, on the complete graph: no quorum, and a threshold as
    version 1 had it. From 14 clients on its graph was sparse, and two fifths of it opened a secret.
    """
    dropped, colluding = share_of(rules.dropouts, clients), share_of(rules.colluding, clients)
    threshold = min(clients - dropped, clients - 1) if clients < 14 else 2 * clients // 5
    survivors = max(rules.fewest, clients - dropped)
    return Plan(clients - 1, threshold, 0, survivors, min(colluding, threshold - 1))


# -- counting --------------------------------------------------------------------------------------


def revealing(lies: Lies, chosen: Plan) -> Marks:
    """The honest clients that reveal shares: by the checks of a participant, and with the quorum
    that each list finds.
    """
    dealers, alive, own = lies.dealers, lies.survivors, np.eye(lies.clients, dtype=bool)
    agreed = alive.diagonal() & ~(alive & ~own & ~dealers).any(axis=1)
    agreed &= dealers.sum(axis=1) + 1 >= chosen.threshold
    agreed &= (alive & dealers).sum(axis=1) + 1 >= chosen.threshold
    agreed &= alive.sum(axis=1) >= chosen.survivors
    agreed[lies.colluders] = False
    signed = Counter(alive[client].tobytes() for client in np.flatnonzero(agreed))
    colluders = alive[:, lies.colluders].sum(axis=1)
    for client in np.flatnonzero(agreed):
        if signed[alive[client].tobytes()] + colluders[client] < chosen.quorum:
            agreed[client] = False
    return agreed


def opens(lies: Lies, chosen: Plan) -> bool:
    """Whether the shares that come of it open the victim's vector."""
    answers, own = revealing(lies, chosen)[:, None], np.eye(lies.clients, dtype=bool)
    seeds = (answers & lies.survivors & (lies.dealers | own)).sum(axis=0) + lies.colluding
    masks = (answers & ~lies.survivors & lies.dealers).sum(axis=0) + lies.colluding
    masks[lies.colluders] = chosen.threshold  # they show their keys
    needed = masks[lies.dealers[VICTIM]]
    return bool(
        len(needed) + 1 >= chosen.threshold  # or it sends no vector
        and seeds[VICTIM] >= chosen.threshold
        and (masks[VICTIM] >= chosen.threshold or (needed >= chosen.threshold).all())
    )


# -- searches --------------------------------------------------------------------------------------


def drawn_lies(clients: int, chosen: Plan, colluding: int) -> Iterator[Lies]:
    """Lies that opened vectors before, and mixtures of them: two lists of survivors; a victim that
    is told of few dealers, who are then said to have dropped out, by one list or by a list for each
    client; and both.
    """
    everybody = ~np.eye(clients, dtype=bool)
    first = 1 + colluding  # of the honest ones
    for told in _spread(chosen.threshold - 1, clients - 1):  # dealers that the victim is told of
        dealers = everybody.copy()
        dealers[VICTIM, 1 + told :] = False
        targets = range(first, 1 + told)
        for split in _spread(0, clients - first):  # who is told that the victim dropped out
            alive = np.ones((clients, clients), dtype=bool)
            alive[clients - split :, VICTIM] = False
            yield from (
                Lies(dealers, lists, colluding)
                for lists in _without(alive, targets, clients - chosen.survivors)
            )


def _spread(least: int, most: int) -> list[int]:
    """All numbers from the least to the most; of many, some."""
    return sorted({round(number) for number in np.linspace(least, most, min(9, most - least + 1))})


def _without(alive: Marks, targets: range, spare: int) -> Iterator[Marks]:
    """Lists of survivors without the targets: one list, one in which each client finds itself, and
    lists that leave out as many targets as each client may miss, in turn.
    """
    one = alive.copy()
    one[:, targets] = False
    yield one
    yield one | np.eye(len(alive), dtype=bool)
    turns, at = alive.copy(), 0
    for client, row in enumerate(turns):
        others = [target for target in targets if target != client]
        missed = max(0, min(len(others), spare - int((~row).sum())))
        for step in range(missed):
            row[others[(at + step) % len(others)]] = False
        at += missed
    yield turns


def first_opening(clients: int, rules: Aggregation, chosen: Plan | None = None) -> Lies | None:
    """The first lies found that open a vector under this plan, or the one of these rules."""
    chosen = chosen or plan(rules, clients)
    colluding = min(clients - 2, share_of(rules.colluding, clients))
    for count in dict.fromkeys((0, colluding)):
        for lies in drawn_lies(clients, chosen, count):
            if opens(lies, chosen):
                return lies
    return None


def every_list_opens(clients: int, chosen: Plan, colluding: int) -> bool:
    """Whether any dealers, for each client, and any one list of survivors open a vector.

    With a quorum, one list is all that honest clients answer.
    """
    choices = [np.array(bits, dtype=bool) for bits in product((True, False), repeat=clients)]
    for alive in choices:
        lists = np.tile(alive, (clients, 1))
        # Who is told of more dealers reveals no less, unless it must refuse: so of each client
        # those that survived, and all of the others or none.
        for rows in product((0, 1), repeat=clients - 1):
            dealers = np.stack([alive, *(alive | bool(more) for more in rows)])
            for own in choices:
                dealers[VICTIM] = own
                told = dealers & ~np.eye(clients, dtype=bool)
                if opens(Lies(told, lists, colluding), chosen):
                    return True
    return False


# -- with real participants ------------------------------------------------------------------------


class LyingServer:
    """Plays lies to real participants, and makes of their answers what it can."""

    def __init__(self, lies: Lies, rules: Aggregation, length: int = 3) -> None:
        self.lies = lies
        self.names = [name_of(place) for place in range(lies.clients)]
        self.honest = [self.names[client] for client in lies.honest]
        self.colluders = {self.names[client] for client in lies.colluders}
        self.dealers = self._listed(lies.dealers)
        self.survivors = self._listed(lies.survivors)
        # Secrets of its own: rosters of the same bytes are kept, with the plan that they had.
        self.room = Room(draw_vectors(lies.clients, length), rules, seed=secrets.token_hex(8))
        self.room.until("masking")
        self.roster = Roster.read(state_of(self.room.participants[self.names[VICTIM]]).roster)
        self.refusals: dict[str, str] = {}
        self._about = {
            "federation": self.roster.opening.federation,
            "roster": self.roster.digest,
            "round": self.roster.opening.round,
        }

    def _listed(self, marks: Marks) -> dict[str, list[str]]:
        return {
            name: [other for other, is_in in zip(self.names, row, strict=True) if is_in]
            for name, row in zip(self.names, marks, strict=True)
        }

    def has_opened(self) -> bool:
        """Whether it finds the victim's vector, bit for bit."""
        masked = self._answers(self.names, self._mask)
        self.agreed = self._answers(self.honest, self._agree)
        revealed = self._answers(list(self.agreed), self._reveal)
        victim = self.names[VICTIM]
        found = self._opened(masked[victim], revealed) if victim in masked else None
        return found is not None and np.array_equal(found, self.room.vectors[victim])

    def _answers(self, names: list[str], ask: Callable[[str], bytes]) -> dict[str, bytes]:
        answers = {}
        for name in names:
            if name not in self.refusals:
                try:
                    answers[name] = ask(name)
                except EvidenceError as problem:
                    self.refusals[name] = str(problem)
        return answers

    def _mask(self, name: str) -> bytes:
        header, body = messages.read_server_message("deliveries", self.room.told(name))
        sent = parcels(body, len(header["senders"]), "the parcels")
        parcel = dict(zip(header["senders"], sent, strict=True))
        told = messages.write_server_message(
            header | {"senders": self.dealers[name]},
            b"".join(parcel[sender].to_bytes() for sender in self.dealers[name]),
        )
        return self.room.participants[name].on_deliveries(told, self.room.vectors[name])

    def _agree(self, name: str) -> bytes:
        return self.room.participants[name].on_survivors(self._list(self.survivors[name]))

    def _list(self, alive: list[str]) -> bytes:
        return messages.write_server_message({"clients": alive, "kind": "survivors"} | self._about)

    def _reveal(self, name: str) -> bytes:
        """With every signature that there is on the list that it was told."""
        alive = self.survivors[name]
        digest = hashlib.sha256(self._list(alive)).hexdigest()
        signed = {
            other: messages.sign(self.roster.agreed(other, digest), b"", key_of(other))
            for other in self.colluders.intersection(alive)
        }
        signed |= {
            other: data for other, data in self.agreed.items() if self.survivors[other] == alive
        }
        header = {"clients": sorted(signed), "kind": "agreements", "survivors": digest}
        told = messages.write_server_message(
            header | self._about,
            b"".join(signed[other][-SIGNATURE_BYTES:] for other in sorted(signed)),
        )
        return self.room.participants[name].on_agreements(told, self.room.pins)

    def _opened(self, masked: bytes, revealed: Mapping[str, bytes]) -> Wide | None:
        context, victim = self.roster.context, self.names[VICTIM]
        seeds, masks = self._shares(revealed)
        seed, own = self._secret(seeds, victim), self._secret(masks, victim)
        if seed is None:
            return None
        plus, minus = [context.self_key(seed, victim)], list[bytes]()
        for dealer in self.dealers[victim]:
            secret = own or self._secret(masks, dealer)
            if dealer in self.colluders:
                secret = state_of(self.room.participants[dealer]).secrets.mask
            if secret is None:
                return None
            other = dealer if secret == own else victim
            key = context.pair_key(Private(secret), self.roster.join(other).mask, victim, dealer)
            (plus if victim < dealer else minus).append(key)
        body = messages.read_client_message(masked).body
        return MaskedVector.from_bytes(body).opened(plus, minus)

    def _shares(self, revealed: Mapping[str, bytes]) -> tuple[Shares, Shares]:
        """Shares of self seeds and of mask keys, by dealer, with the holder's number: those
        revealed, and all that colluding clients hold.
        """
        seeds: Shares = {name: {} for name in self.names}
        masks: Shares = {name: {} for name in self.names}
        for holder, data in revealed.items():
            held = sorted({holder, *self.dealers[holder]})
            body = messages.read_client_message(data).body
            pieces = messages.pieces(body, len(held), SHARE_BYTES, "shares")
            for dealer, share in zip(held, pieces, strict=True):
                into = seeds if dealer in self.survivors[holder] else masks
                into[dealer][self._number(dealer, holder)] = share
        for holder in self.colluders:
            state = state_of(self.room.participants[holder])
            shares = messages.pieces(
                memoryview(state.held), 2 * len(state.peers), SHARE_BYTES, "shares"
            )
            for dealer, seed, mask in zip(state.peers, shares[::2], shares[1::2], strict=True):
                seeds[dealer][self._number(dealer, holder)] = seed
                masks[dealer][self._number(dealer, holder)] = mask
        return seeds, masks

    def _number(self, dealer: str, holder: str) -> int:
        return 1 + self.roster.holders(dealer).index(holder)

    def _secret(self, shares: Shares, name: str) -> bytes | None:
        threshold = self.roster.plan.threshold
        enough = len(shares[name]) >= threshold
        return shamir.recover(shares[name], threshold) if enough else None
