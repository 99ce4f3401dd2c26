"""Exchanges of parcels on the in-process grid: answers find their questions, and whatever is wrong
is said.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import CarrierError, InputError, ProtocolError
from expunge.transport.flower.messages import Payload
from support.flower import Clinics

NODES = {1000 + number: {"partition-id": number} for number in range(4)}


def module(name: str) -> Any:
    """A module that imports flwr, which is not there when tests are collected."""
    package = "expunge_experiments.flower" if name == "exchange" else "expunge.transport.flower"
    return importlib.import_module(f"{package}.{name}")


def echo(parcel: Payload, place: Any) -> Payload:
    """The same parcel, and whose it is."""
    return Payload(parcel.note, (*parcel.parts, str(place.node_config["partition-id"]).encode()))


def grid_of(
    handle: Callable[[Payload, Any], Payload] = echo,
    fate: Callable[[str, int, int], str] = lambda *_: "",
) -> Any:
    app = module("exchange").client_app("test", handle)
    return module("inprocess").InProcessGrid(app, NODES, {}, fate)


def exchange_on(grid: Any, **options: Any) -> Any:
    return module("exchange").Exchange(grid, "test", **options)


def exchange_of(
    handle: Callable[[Payload, Any], Payload] = echo,
    *,
    fate: Callable[[str, int, int], str] = lambda *_: "",
) -> Any:
    return exchange_on(grid_of(handle, fate))


@given(
    st.lists(st.sampled_from(sorted(NODES)), unique=True).flatmap(
        lambda nodes: st.tuples(
            *(
                st.tuples(st.just(node), st.lists(st.binary(max_size=40), max_size=3))
                for node in nodes
            )
        )
    )
)
def test_answers_come_in_the_order_of_the_questions(
    asked: tuple[tuple[int, list[bytes]], ...],
) -> None:
    answers = exchange_of().ask([(node, Payload(b"{}", tuple(parts))) for node, parts in asked])
    assert answers == [Payload(b"{}", (*parts, str(node - 1000).encode())) for node, parts in asked]


def test_a_node_is_asked_once_in_an_exchange() -> None:
    with pytest.raises(InputError, match="one parcel"):
        exchange_of().ask([(1000, Payload(b"{}")), (1000, Payload(b"{}"))])


@pytest.mark.parametrize("kind", ["message", "reply"])
def test_a_lost_message_is_named(kind: str) -> None:
    exchange = exchange_of(
        fate=lambda what, node, _: "lose" if (what, node) == (kind, 1002) else ""
    )
    with pytest.raises(CarrierError, match="node 1002 did not answer: the message has expired"):
        exchange.ask([(node, Payload(b"{}")) for node in NODES])


def test_an_error_of_a_node_is_told() -> None:
    def refuse(parcel: Payload, place: Any) -> Payload:
        if place.node_config["partition-id"] == 1:
            raise InputError("these are not my samples")
        return parcel

    exchange = exchange_of(refuse)
    with pytest.raises(
        ProtocolError, match="node 1001 could not answer: InputError: these are not my samples"
    ):
        exchange.ask([(node, Payload(b"{}")) for node in NODES])
    assert exchange.ask([(1000, Payload(b"{}"))]) == [Payload(b"{}")]


def test_an_answer_that_is_none_is_told() -> None:
    flwr, records = importlib.import_module("flwr.clientapp"), importlib.import_module("flwr.app")
    app = flwr.ClientApp()
    app.query("test")(lambda message, _: records.Message(records.RecordDict(), reply_to=message))
    exchange = module("exchange").Exchange(
        module("inprocess").InProcessGrid(app, NODES, {}), "test"
    )
    with pytest.raises(ProtocolError, match="node 1003 says what cannot be understood"):
        exchange.ask([(1003, Payload(b"{}"))])


def test_silent_nodes_are_named_when_time_is_up() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        assert 0 < seconds <= 0.02
        now[0] += seconds

    grid = grid_of()
    pulled = grid.pull_messages
    grid.pull_messages = lambda identities: [
        one for one in pulled(identities) if one.metadata.src_node_id not in (1001, 1003)
    ]
    exchange = exchange_on(grid, reply_seconds=5.0, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(CarrierError, match="no answer within 5 seconds from: node 1001, node 1003"):
        exchange.ask([(node, Payload(b"{}")) for node in NODES])
    assert now[0] == pytest.approx(5.0, abs=0.1)


def test_a_message_that_cannot_be_sent_is_told() -> None:
    grid = grid_of()
    grid.push_messages = lambda _: []
    exchange = exchange_on(grid)
    with pytest.raises(CarrierError, match="a message to node 1000 could not be sent"):
        exchange.ask([(1000, Payload(b"{}"))])


def test_nodes_are_waited_for() -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            grid.nodes[1009] = {"partition-id": 9}

    grid = grid_of()
    exchange = exchange_on(grid, clock=lambda: sum(pauses), sleep=sleep)
    assert exchange.nodes(5) == [*NODES, 1009]
    assert pauses == [0.005, 0.01, 0.02]
    with pytest.raises(CarrierError, match="5 nodes are connected, and 6 are needed"):
        exchange.nodes(6)


def test_an_exchange_stands_beside_the_protocol(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One app answers both: a sync of Expunge's clients, and parcels of an action of one's own."""
    clinics = Clinics(tmp_path, 2)
    app = module("client_app").client_app()
    module("exchange").register(app, "test", echo)
    nodes = {
        1000 + number: {"partition-id": number, "expunge-client": str(clinics.folder(name))}
        for number, name in enumerate(clinics.retained)
    }
    grid = module("inprocess").InProcessGrid(app, nodes, {"expunge-server": str(clinics.server)})
    answers = []

    def lead(exchange: Any, _: Any) -> None:
        answers.extend(exchange.ask([(node, Payload(b"{}")) for node in exchange.nodes(2)]))

    grid.run_server(module("exchange").server_app("test", lead))
    with caplog.at_level(logging.INFO, "flwr"):
        grid.run_server(module("server_app").server_app())
    assert [answer.parts for answer in answers] == [(b"0",), (b"1",)]
    clinics.check()
