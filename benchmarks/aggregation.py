"""Secure aggregation against plain messages of statistics: bytes and time, for each client and at
the server.

Rounds are run whole, by real participants and a collector in a process of its own, and their sums
are compared with the plain ones. A client's state is stored and read back between its messages, as
in a client's store.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from unittest import mock

import numpy as np

from benchmarks.collecting import CollectorProcess
from benchmarks.data import Data
from benchmarks.measure import Row, progress, seconds
from expunge import Aggregation, Spec, Statistics
from expunge.crypto import PublicKey, SigningKey
from expunge.exact.wide import Wide
from expunge.ridge.sums import Sums
from expunge.secagg import Contribution, Opening, Participant, plan
from expunge.secagg import roster as rosters
from expunge.secagg.parcels import PARCEL_BYTES
from expunge.secagg.plan import tails
from expunge.secagg.shamir import SHARE_BYTES
from expunge.wire import messages, request
from expunge.wire.messages import GramPart, Message
from expunge.wire.request import Header

_ROUNDS = (
    (10, 1281),
    (100, 1281),
    (1000, 64),
)  # clients, and width of their features with the constant one
_PLANNED = (10_000, 100_000)
_DROPPED = 30  # per cent
_SAMPLE = 20  # clients whose time is taken
_RULES = Aggregation()
_FEDERATION = "f" * 32
_SAID = ("shares", "masked", "agreed", "reveal")
_LISTS = ("roster", "survivors", "agreements")
_MASKS = ("shares", "deliveries", "reveal")
# Version 1 of the protocol, by clients: neighbours under the same rules, and the time of a client
# in plain requests as this benchmark found it then
_VERSION_1 = {10: (6, 2.30), 100: (32, 7.75), 1000: (86, 957.0)}
_MEBI, _KIBI = 1 << 20, 1 << 10


@dataclass
class Measured:
    """One round: bytes of each kind of message, a client's seconds at each step (medians), and the
    server's.
    """

    clients: int
    width: int
    sizes: dict[str, float]
    client: dict[str, float]
    server: dict[str, float]
    peak: float

    @property
    def masks(self) -> float:
        """Bytes that a client sends and receives for masks."""
        return sum(self.sizes[kind] for kind in _MASKS)


@dataclass
class Plain:
    """The same by plain messages: a request's bytes, the seconds to make it, and those of the
    server for one.
    """

    request: int
    statistics: int
    client: float
    server: float


@dataclass
class Clients:
    """Clients with samples of their own, and their keys."""

    data: Data
    count: int
    width: int
    keys: dict[str, SigningKey] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spec = Spec(dim=self.width - 1, labels=tuple(range(10)), gamma=1.0)
        for place in range(self.count):
            name = f"client-{place:06}"
            self.keys[name] = SigningKey(hashlib.sha256(name.encode()).digest())
        self.pins: dict[str, PublicKey] = {name: key.public for name, key in self.keys.items()}
        self.shares = dict(
            zip(
                self.keys, np.array_split(np.arange(len(self.data.labels)), self.count), strict=True
            )
        )
        spread = np.linspace(0, self.count - 1, min(self.count, _SAMPLE)).astype(np.int64)
        self.sample = {list(self.keys)[place] for place in spread}

    def statistics(self, name: str) -> Statistics:
        """Of a client's samples; the widths measured take the first of the features."""
        share, columns = self.shares[name], self.width - 1
        features = np.ascontiguousarray(self.data.features[share, :columns])
        return Statistics.of(self.spec, features, self.data.labels[share], lost_columns="accept")


class Round:
    """A round of which some clients drop out once they have dealt their shares, which costs the
    server most.
    """

    def __init__(self, clients: Clients, dropped: int) -> None:
        self._clients = clients
        self._opening = Opening(
            _FEDERATION, "0" * 32, "change", clients.spec.data_digest, clients.spec.labels_digest
        )
        self._states: dict[str, bytes] = {}
        self._included = [
            name
            for place, name in enumerate(clients.keys)
            if (place * dropped) % 100 + dropped < 100
        ]
        self._sizes: dict[str, list[int]] = defaultdict(list)
        self._taken: dict[str, list[float]] = defaultdict(list)
        self._expected = Sums(clients.spec)

    def run(self) -> Measured:
        """The whole round."""
        clients, pins = self._clients, self._clients.pins
        with CollectorProcess(self._opening, _RULES, pins) as server:
            say = partial(self._say, server)
            for name, key in clients.keys.items():
                participant = Participant.join(
                    self._opening, _RULES, name=name, sequence=1, key=key
                )
                self._states[name] = participant.to_bytes()
                server.take("shares", participant.message)
            server.advance("shares")
            for name in clients.keys:
                say(name, "shares", lambda one, told: one.on_roster(told, pins), "roster")
            server.advance("shares")
            for name in self._included:
                own = clients.statistics(name)
                self._expected.merge(own)
                vector = Contribution.of(own, None, clients.spec).vector()
                say(name, "masked", _masking(vector), "deliveries")
            server.advance("masked")
            for name in self._included:
                say(name, "agreed", lambda one, told: one.on_survivors(told), "survivors")
            server.advance("agreed")
            for name in self._included:
                say(name, "reveal", lambda one, told: one.on_agreements(told, pins), "agreements")
            server.advance("unmasking")
            self._check(server)
            peak = server.peak()
        sizes = {kind: statistics.median(found) for kind, found in self._sizes.items()}
        taken = {step: statistics.median(found) for step, found in self._taken.items()}
        return Measured(clients.count, clients.width, sizes, taken, dict(server.seconds), peak)

    def _say(
        self,
        server: CollectorProcess,
        name: str,
        kind: str,
        answer: Callable[[Participant, bytes], bytes],
        heard: str,
    ) -> None:
        """One message of a client, made from the server's messages and from its stored state."""
        clients, said = self._clients, list[bytes]()
        told = server.say(kind, name)

        def work() -> None:
            participant = Participant.from_bytes(self._states[name], clients.keys[name], _RULES)
            said.append(answer(participant, told))
            self._states[name] = participant.to_bytes()

        if name in clients.sample:
            if heard == "roster":
                _forget_rosters()
                self._taken["roster"].append(
                    seconds(lambda: rosters.Roster.read(told).verify(clients.pins))
                )
                _forget_rosters()
            self._taken[kind].append(seconds(work))
            self._sizes[heard].append(len(told))
            self._sizes[kind].append(len(said[0]))
        else:
            with _trusting() if heard == "agreements" else nullcontext():
                work()
        server.take(kind, said[0])

    def _check(self, server: CollectorProcess) -> None:
        spec = self._clients.spec
        if Contribution.from_vector(spec, server.sum()).statistics != Statistics.snapshot(
            self._expected
        ):
            raise RuntimeError(
                "the sum of a round is not the plain sum: what was measured is worth nothing"
            )


def _masking(vector: Wide) -> Callable[[Participant, bytes], bytes]:
    return lambda participant, told: participant.on_deliveries(told, vector)


def _forget_rosters() -> None:
    """A client of its own has read no roster before, nor made a plan; here, all clients share a
    process, which remembers both.
    """
    rosters._read.cache_clear()
    plan.cache_clear()
    tails.cache_clear()


def _trusting() -> AbstractContextManager[object]:
    """Agreements need not be verified by clients whose time is not taken: others have done so, and
    it is most of what a round of a thousand clients in one process takes.
    """
    return mock.patch.object(rosters.Roster, "verify_agreed")


def plainly(clients: Clients) -> list[Plain]:
    """Plain messages of the same statistics: made, and taken in as far as the ledger's sums, by the
    clients of the sample.
    """
    sums = Sums(clients.spec)
    return [_plain(clients, name, sums) for name in sorted(clients.sample)]


def _median(found: list[Plain]) -> Plain:
    return Plain(
        max(one.request for one in found),
        max(one.statistics for one in found),
        statistics.median(one.client for one in found),
        statistics.median(one.server for one in found),
    )


def _plain(clients: Clients, name: str, sums: Sums) -> Plain:
    own, key, spec, data = clients.statistics(name), clients.keys[name], clients.spec, list[bytes]()
    header = Header(
        federation=_FEDERATION,
        client=name,
        sequence=1,
        nonce="0" * 64,
        data_digest=spec.data_digest,
        labels_digest=spec.labels_digest,
        message="gram",
        added=own.count,
    )
    named = [hashlib.sha256(f"{name} {place}".encode()).digest() for place in range(own.count)]

    def make() -> None:
        data.append(
            request.write(header, named, [], Message("gram", GramPart(own)).to_bytes(spec), key)
        )

    made = seconds(make)
    taken = seconds(lambda: _take(data[0], spec, key.public, sums))
    return Plain(len(data[0]), len(own.to_bytes()), made, taken)


def _take(data: bytes, spec: Spec, key: PublicKey, sums: Sums) -> None:
    heard = request.read(data)
    heard.signed.verify(key)
    message = messages.read(spec, "gram", heard.header.added, heard.header.deleted, heard.message)
    if isinstance(message.added, GramPart):
        sums.merge(message.added.statistics)


# -- the page --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A round with nobody dropping out, the same with some who do, and the plain messages."""

    whole: Measured
    dropped: Measured
    plain: Plain


def report(data: Data) -> tuple[str, list[Row]]:
    """Everything measured, as text, and the claims with what is wanted of them."""
    found = []
    for count, width in _ROUNDS:
        clients = Clients(data, count, width)
        plain = plainly(clients)  # before, between and after: a busy machine slows both sides
        progress(f"secure aggregation: {count} clients, width {width}")
        whole = Round(clients, 0).run()
        plain += plainly(clients)
        progress(f"secure aggregation: the same, {_DROPPED}% drop out")
        dropped = Round(clients, _DROPPED).run()
        plain += plainly(clients)
        found.append(Compared(whole, dropped, _median(plain)))
    return _page(found), _rows(found)


def _planned(measured: Measured, clients: int) -> float:
    """Bytes for masks in a round of `clients`, extrapolated from a measured one: only the
    neighbours' parts grow.
    """
    each = 2 * PARCEL_BYTES + SHARE_BYTES + len('"client-000000",')
    return measured.masks + each * (
        plan(_RULES, clients).degree - plan(_RULES, measured.clients).degree
    )


def _growth(measured: Measured) -> float:
    return _planned(measured, _PLANNED[-1]) / measured.masks


def _logarithms(measured: Measured) -> float:
    return math.log(_PLANNED[-1]) / math.log(measured.clients)


def _rows(found: list[Compared]) -> list[Row]:
    largest, (fewer, most) = found[-1].whole, _PLANNED
    limit = math.log(most) / math.log(fewer)
    masks = (_planned(largest, most) / _KIBI, _planned(largest, fewer) / _KIBI)
    what = f"bytes for a client's masks, {most:,} clients (from the plan)"
    against = f"{fewer:,} clients (from the plan)"
    wanted = f"at most {limit:.2f}x, as the logarithms"
    rows = [Row(what, against, *masks, wanted, masks[0] <= limit * masks[1], unit="KiB")]
    for one in found:
        whole, plain = one.whole, one.plain
        name = f"{whole.clients:,} clients, d = {whole.width:,}"
        told = "(for information)"
        sent = (
            sum(whole.sizes[kind] for kind in _SAID) / _MEBI,
            plain.request / _MEBI,
        )
        client = (1e3 * _of_client(whole), 1e3 * plain.client)
        each = (1e3 * _of_server(whole) / whole.clients, 1e3 * plain.server)
        rows += [
            Row(
                f"secure aggregation, sent by a client, {name}",
                "plain request (gram)",
                *sent,
                told,
                holds=True,
                unit="MiB",
            ),
            Row(
                f"secure aggregation, time of a client, {name}",
                "making a plain request",
                *client,
                told,
                holds=True,
            ),
            Row(
                f"secure aggregation, server, for each of {name}",
                "taking a plain request in",
                *each,
                told,
                holds=True,
            ),
        ]
    return rows


def _of_client(one: Measured) -> float:
    return sum(one.client[kind] for kind in _SAID)


def _of_server(one: Measured) -> float:
    return sum(one.server[step] for step in (*_SAID, "unmasking"))


def _page(found: list[Compared]) -> str:
    return f"""## Secure aggregation

Rounds under the default rules ({_RULES.dropouts}% may drop out, {_RULES.colluding}% collude; security 2^-{_RULES.security_bits},
completion 2^-{_RULES.completion_bits}), whole, by real clients that exchange bytes with a server in a process of its own; each
sum was compared with the plain one. Times of clients are medians over {_SAMPLE} of them (all, if they are fewer), each with a
roster that it has never seen; it stays in one process until the round is over. Statistics of samples are the same work either
way, and not counted.

A client, in milliseconds. Sharing: checks the roster, plans the round and deals shares; masking: opens its neighbours' shares and
hides its vector under a mask for each; agreeing: checks and signs who survived; revealing: checks what the others signed, and
gives the shares away that open the sum.

| clients | d | neighbours | sharing | of it, the roster | masking | agreeing | revealing | plain request (gram) |
|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{chr(10).join(map(_client_line, found))}

Version 1 of the protocol had fewer neighbours and no agreement: a server that lied could open a client's vector. What it costs
that none can, by neighbours and by the time of a client in plain requests (that of version 1 as it was measured then, with masks
that took a third longer each, and the roster read anew for every message):

| clients | d | neighbours | in version 1 | ratio | time, in plain requests | in version 1 | ratio |
|---:|---:|---:|---:|---:|---:|---:|---:|
{chr(10).join(map(_version_line, found))}

Bytes of a client. Masks are shares, deliveries and revealed shares; the lists are the roster, who survived, and who signed that,
which name everybody and so grow with the round. Over HTTP what a client is told travels in base64, a third more.

| clients | d | neighbours | vector | masks | masks / log2(clients) | lists | statistics | plain request (gram) |
|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{chr(10).join(map(_bytes_line, found))}
{chr(10).join(_planned_line(found[-1].whole, clients) for clients in _PLANNED)}

Rows without d follow from the plan: each neighbour costs as many bytes in any round. In small rounds fewer will do than the
logarithm, since those who drop out or collude are soon exhausted; so the number grows faster there: from {found[-1].whole.clients:,}
to {_PLANNED[-1]:,} clients {_growth(found[-1].whole):.2f} times, the logarithm {_logarithms(found[-1].whole):.2f} times.

The server, in seconds. Taking in is all that it does before the sum is unmasked. Who drops out has dealt shares, and no more.

| clients | d | taking in | unmasking | unmasking, {_DROPPED}% dropped out | peak memory | taking in plain requests |
|---:|---:|---:|---:|---:|---:|---:|
{chr(10).join(map(_server_line, found))}
"""


def _client_line(one: Compared) -> str:
    whole = one.whole
    times = [whole.client[kind] for kind in ("shares", "roster", "masked", "agreed", "reveal")]
    cells = " | ".join(f"{1e3 * taken:.3g}" for taken in (*times, one.plain.client))
    return (
        f"| {whole.clients:,} | {whole.width:,} | {plan(_RULES, whole.clients).degree} | {cells} |"
    )


def _version_line(one: Compared) -> str:
    clients, degree = one.whole.clients, plan(_RULES, one.whole.clients).degree
    time = _of_client(one.whole) / one.plain.client
    degree_before, time_before = _VERSION_1[clients]
    return (
        f"| {clients:,} | {one.whole.width:,} | {degree} | {degree_before} | "
        f"{degree / degree_before:.1f}x | {time:,.1f} | {time_before:,.1f} | "
        f"{time / time_before:.1f}x |"
    )


def _bytes_line(one: Compared) -> str:
    whole, sizes = one.whole, one.whole.sizes
    numbers = [
        sizes["masked"],
        whole.masks,
        whole.masks / math.log2(whole.clients),
        sum(sizes[kind] for kind in _LISTS),
    ]
    cells = " | ".join(
        f"{int(number):,}" for number in (*numbers, one.plain.statistics, one.plain.request)
    )
    return (
        f"| {whole.clients:,} | {whole.width:,} | {plan(_RULES, whole.clients).degree} | {cells} |"
    )


def _planned_line(measured: Measured, clients: int) -> str:
    masks = _planned(measured, clients)
    return (
        f"| {clients:,} | | {plan(_RULES, clients).degree} | | {int(masks):,} | "
        f"{int(masks / math.log2(clients)):,} | | | |"
    )


def _server_line(one: Compared) -> str:
    whole, dropped = one.whole, one.dropped
    taking = sum(whole.server[step] for step in _SAID)
    unmasking = (whole.server["unmasking"], dropped.server["unmasking"])
    cells = " | ".join(f"{taken:.3g}" for taken in (taking, *unmasking))
    peak = f"{max(whole.peak, dropped.peak):.0f} MiB"
    return (
        f"| {whole.clients:,} | {whole.width:,} | {cells} | {peak} | "
        f"{whole.clients * one.plain.server:.3g} |"
    )
