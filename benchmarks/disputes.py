"""What a false sum costs: a client's opening of its part, and the arbiter's examination of it,
against making and taking a plain request of the same statistics.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.aggregation import Clients, plainly
from benchmarks.data import Data
from benchmarks.measure import Row, progress, seconds
from expunge import Aggregation, Statistics
from expunge.secagg import Contribution, Opening, Participant
from expunge.secagg.arbitration import Arbiter, Dispute, examine
from expunge.secagg.collector import Collector

_CLIENTS, _WIDTH = 10, 1281
_ARBITER = Arbiter(bytes(range(64)))
_RULES = Aggregation(arbiter=_ARBITER.public)
_FEDERATION = "f" * 32
_MEBI = 1 << 20


def _masked(clients: Clients) -> tuple[dict[str, Participant], Collector]:
    """A round as far as its masked vectors; the first client sends a false one."""
    spec = clients.spec
    opening = Opening(_FEDERATION, "0" * 32, "change", spec.data_digest, spec.labels_digest)
    parts = {
        name: Participant.join(opening, _RULES, name=name, sequence=1, key=key)
        for name, key in clients.keys.items()
    }
    collector = Collector(opening, _RULES, clients.pins.__getitem__)
    for part in parts.values():
        collector.take(part.message)
    collector.advance()
    for name, part in parts.items():
        collector.take(part.on_roster(collector.say(name) or b"", clients.pins))
    collector.advance()
    for place, (name, part) in enumerate(parts.items()):
        vector = Contribution.of(clients.statistics(name), None, spec).vector()
        if place == 0:
            vector = vector.copy()
            vector[0, 0] += np.uint64(1)
        collector.take(part.on_deliveries(collector.say(name) or b"", vector))
    collector.advance()
    return parts, collector


def _open(openings: dict[str, bytes], part: Participant, own: Statistics) -> None:
    openings[part.name] = part.open_part(own, None)


def report(data: Data) -> tuple[str, list[Row]]:
    """Medians over the clients of one round, and the rows of the table."""
    progress(f"a false sum: {_CLIENTS} clients, width {_WIDTH}")
    clients = Clients(data, _CLIENTS, _WIDTH)
    clients.spec = replace(clients.spec, messages=("masked",), aggregation=_RULES)
    plain = plainly(Clients(data, _CLIENTS, _WIDTH))
    parts, collector = _masked(clients)
    keys = {name: key.text for name, key in clients.pins.items()}
    included = frozenset(collector.included)
    dispute = Dispute(clients.spec, _FEDERATION, "impossible", included, collector.records(), keys)
    openings, opening, examining = dict[str, bytes](), list[float](), list[float]()
    for name, part in parts.items():
        own = clients.statistics(name)
        opening.append(seconds(partial(_open, openings, part, own)))
        alone = replace(dispute, openings={name: openings[name]})
        examining.append(seconds(partial(examine, alone, _ARBITER)))
    named = list(examine(replace(dispute, openings=openings), _ARBITER).false)
    if named != [next(iter(parts))]:
        raise RuntimeError(f"the arbiter named {named}: what was measured is worth nothing")
    making, taking = (
        1e3 * statistics.median(times)
        for times in zip(*((one.client, one.server) for one in plain), strict=True)
    )
    size = statistics.median(map(len, openings.values())) / _MEBI
    told = "(for information)"
    rows = [
        Row(
            "false sum: a client opens its part",
            "making a plain request",
            1e3 * statistics.median(opening),
            making,
            told,
            holds=True,
        ),
        Row(
            "false sum: bytes of an opening",
            "plain request (gram)",
            size,
            max(one.request for one in plain) / _MEBI,
            told,
            holds=True,
            unit="MiB",
        ),
        Row(
            "false sum: the arbiter examines one client",
            "taking a plain request in",
            1e3 * statistics.median(examining),
            taking,
            told,
            holds=True,
        ),
    ]
    page = f"""## A false sum

{_CLIENTS} clients, d = {_WIDTH:,}: one client has sent something else than what it adds, all open their parts to the arbiter,
who names that one and nobody else."""
    return page, rows
