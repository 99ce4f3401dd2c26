"""Random streams under secure aggregation: whoever stops, drops out or loses messages, the ledger
is that of retraining on what the rounds have included; nothing is lost, and nothing is counted
twice.
"""

from __future__ import annotations

import random

import pytest

from expunge.errors import CarrierError
from support import seeds
from support.masked_round import GATHER, PHASE, Circle, drawn


def something(circle: Circle, name: str, chance: random.Random) -> None:
    """Whatever a client may do between two syncs."""
    held = list(circle.held[name])
    if held and chance.random() < 0.4:
        circle.forget(name, chance.sample(held, min(len(held), chance.randrange(1, 3))))
    elif held and chance.random() < 0.3:
        circle.correct(name, chance.choice(held))
    else:
        circle.add(name, chance.randrange(1, 3))


def step(circle: Circle, chance: random.Random) -> None:
    """Whatever may happen next: mostly somebody syncs, and sometimes a message is lost, or time is
    up.
    """
    name, what = chance.choice(circle.names), chance.random()
    if what < 0.20:
        something(circle, name, chance)
    elif what < 0.24:
        circle.restart_client(name)
    elif what < 0.26:
        circle.restart_server()
    elif what < 0.35:
        circle.wait(chance.choice([1.0, GATHER, GATHER, GATHER, PHASE]))
    elif what < 0.36:
        circle.federation.operator.command("audit")
    elif what < 0.80:
        for one in [
            *chance.sample(circle.names, len(circle.names)),
            *chance.sample(circle.names, 2),
        ]:
            circle.sync(one)
    else:
        lossy(circle, name, chance)


def lossy(circle: Circle, name: str, chance: random.Random) -> None:
    """A sync in which one exchange is lost: the message, or its answer."""
    exchanges = iter([""] * chance.randrange(8) + [chance.choice(["there", "back"])])
    circle.way.lose = lambda _: next(exchanges, "")
    try:
        circle.sync(name)
    except CarrierError:
        assert next(exchanges, None) is None
    finally:
        circle.way.lose = lambda _: ""


@pytest.mark.parametrize("seed", range(5))
def test_the_ledger_is_always_that_of_retraining_on_what_was_included(seed: int) -> None:
    chance = seeds.chance(seed)
    with drawn(chance.choice([3, 4, 6]), seed=chance.randrange(2**32)) as circle:
        tell(circle, chance)


def tell(circle: Circle, chance: random.Random) -> None:
    """A whole story, to its good end."""
    size = 0
    for _ in range(80):
        step(circle, chance)
        if circle.service.state.log.size != size:
            circle.check()
            size = circle.service.state.log.size
    for _ in range(
        3
    ):  # what was masked goes out as it is: what came later needs another round, and others in it
        circle.everybody_adds()
        circle.go(passes=40)
        if not any(
            store.status().adding or store.status().deleting for store in circle.stores.values()
        ):
            break
    circle.check_whole()
    assert circle.entries("aggregated")
    assert all(entry["result"] == "equal" for entry in circle.entries("audited"))
