"""The real ServerApp and ClientApp in one process, through real serialisation; also with messages
lost, repeated and late.
"""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import Aggregation, Spec, solve
from expunge.errors import FormatError, InputError, RefusedError
from expunge.server.state import Settings
from expunge.transport.local import LocalCarrier
from support.flower import Clinics


class KilledError(Exception):
    """The ServerApp ends here."""


def module(name: str) -> Any:
    return importlib.import_module(f"expunge.transport.flower.{name}")


class Grids:
    """Runs of the apps on one federation, each on a grid of its own."""

    def __init__(self, clinics: Clinics, **config: Any) -> None:
        self.clinics = clinics
        self.config = {
            "expunge-server": str(clinics.server),
            **{f"expunge-{name.replace('_', '-')}": value for name, value in config.items()},
        }

    def grid(
        self,
        fate: Callable[[str, int, int], str] | None = None,
        names: Sequence[str] | None = None,
        *,
        app: Any = None,
    ) -> Any:
        names = list(self.clinics.retained) if names is None else names
        nodes = {
            1000 + place: {"expunge-client": str(self.clinics.folder(name))}
            for place, name in enumerate(names)
        }
        options = {} if fate is None else {"fate": fate}
        return module("inprocess").InProcessGrid(
            app or module("client_app").client_app(), nodes, self.config, **options
        )

    def run(
        self, fate: Callable[[str, int, int], str] | None = None, names: Sequence[str] | None = None
    ) -> Any:
        grid = self.grid(fate, names)
        grid.run_server(module("server_app").server_app())
        return grid


def test_ten_clients_add_and_forget_obey_orders_and_answer_an_audit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clinics = Clinics(tmp_path, 10, message="gram")
    grids = Grids(clinics)
    ids = clinics.add("clinic-04", 3, subject="ada")
    with caplog.at_level(logging.INFO, "flwr"):
        grids.run()
    clinics.check()
    digest = solve(clinics.statistics()).digest
    assert (
        f"53 samples, head {digest}; 10 requests applied, 10 clients seen, 0 with problems, 0 "
        "waiting for others, 0 nodes late"
    ) in caplog.text
    order = clinics.order("ada")
    for one in ids:
        del clinics.retained["clinic-04"][one]
    clinics.forget("clinic-07", 2)
    clinics.add("clinic-08", 2)
    grids.run()
    clinics.check()
    with clinics.service():
        assert clinics.officer.ask("show-order", order=order)["state"] == "complete"
        audit = clinics.officer.command("audit")["audit"]
    grids.run()
    clinics.check()
    with clinics.service() as federation:
        federation.finish_audits()
        assert clinics.officer.ask("show-audit", audit=audit)["result"] == "equal"


def test_an_idle_federation_takes_two_messages_for_each_client(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path, 4)
    grids = Grids(clinics)
    grids.run()
    grid = grids.run()
    assert (grid.sent, grid.received) == (8, 8)


@pytest.mark.parametrize("seed", range(3))
def test_messages_that_are_lost_repeated_and_late(tmp_path: Path, seed: int) -> None:
    """Whatever happens on the way, each request takes effect once, and nothing else does."""
    clinics = Clinics(tmp_path, 5)
    grids, chance = Grids(clinics), random.Random(seed)  # noqa: S311 - chance, not a secret

    def fate(kind: str, _: int, __: int) -> str:
        choices = ("lose", "repeat", "hold") if kind == "message" else ("lose",)
        return chance.choice(choices) if chance.random() < 0.3 else ""

    for _ in range(3):
        grids.run(fate)
        for name in clinics.retained:
            clinics.add(name, 1)
            clinics.forget(name, 2)
    grids.run(fate)
    grids.run()
    clinics.check()
    with clinics.service() as federation:
        entries = federation.entries("changed")
        assert len({(entry["client"], entry["sequence"]) for entry in entries}) == len(entries)


@pytest.mark.parametrize("kind", ["message", "reply"])
@pytest.mark.parametrize("number", range(4))
def test_any_single_message_may_be_lost(tmp_path: Path, kind: str, number: int) -> None:
    clinics = Clinics(tmp_path, 2)
    lost: list[int] = []

    def fate(what: str, node: int, place: int) -> str:
        if (what, place) == (kind, number):
            lost.append(node)
            return "lose"
        return ""

    Grids(clinics).run(fate)
    assert lost
    clinics.check()


@pytest.mark.parametrize("pushes", range(1, 6))
def test_a_server_app_that_dies_is_run_again(tmp_path: Path, pushes: int) -> None:
    """Wherever it dies, the next run carries on from the ledger."""
    clinics = Clinics(tmp_path, 3)
    grids = Grids(clinics)

    def fate(kind: str, _: int, place: int) -> str:
        if kind == "message" and place == pushes:
            raise KilledError
        return ""

    with suppress(KilledError):
        grids.run(fate)
    grids.run()
    clinics.check()
    with clinics.service() as federation:
        assert len(federation.entries("changed")) == 3


def test_a_refused_client_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clinics = Clinics(tmp_path, 3)
    answer = LocalCarrier.sync

    def picky(self: LocalCarrier, data: bytes) -> bytes:
        if not refused:
            refused.append(data)
            raise RefusedError("unknown-actor", "nobody of that name")
        return answer(self, data)

    refused: list[bytes] = []
    monkeypatch.setattr(LocalCarrier, "sync", picky)
    grids = Grids(clinics)
    grids.run()
    assert "could not go on: unknown-actor: nobody of that name" in caplog.text
    grids.run()
    clinics.check()


def test_some_nodes_take_part_and_late_ones_are_left_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clinics = Clinics(tmp_path, 4)
    grids = Grids(clinics, fraction=0.5)
    tallies = []
    serve = module("server_app").serve
    app = importlib.import_module("flwr.serverapp").ServerApp()
    app.main()(lambda grid, context: tallies.append(serve(grid, context)))
    grids.grid().run_server(app)
    assert len(tallies[0].done) == 2
    clinics.check(tallies[0].done)
    grids.config["expunge-fraction"] = 1.0
    grids.grid(lambda _, node, __: "lose" if node == 1002 else "").run_server(app)
    assert tallies[1].late == {1002}
    assert "node 1002 is left behind: it does not reply" in caplog.text
    grids.run()
    clinics.check()


def test_a_node_that_is_away_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Within one run, if it comes back in time; otherwise it is left behind."""
    clinics = Clinics(tmp_path, 2)
    looks: list[int] = []

    def lost_then_away(kind: str, node: int, place: int) -> str:
        if node == 1001 and kind == "message" and not looks:
            del grid.nodes[1001]
            looks.append(place)
            return "lose"
        return ""

    def node_ids() -> list[int]:
        if looks:
            looks.append(len(looks))
        if len(looks) == back:
            grid.nodes.update(connected)
        return list(grid.nodes)

    grid = Grids(clinics, reply_seconds=0.5).grid(lost_then_away)
    connected, back = dict(grid.nodes), 5
    grid.get_node_ids = node_ids
    grid.run_server(module("server_app").server_app())
    clinics.check()
    clinics.add("clinic-01", 1)
    looks.clear()
    back = -1
    grid.run_server(module("server_app").server_app())
    assert "node 1001 is left behind: it is not connected" in caplog.text
    grid.get_node_ids = lambda: list(connected)
    grid.nodes.update(connected)
    grid.run_server(module("server_app").server_app())
    clinics.check()


@pytest.mark.parametrize(("seconds", "exchanges"), [(0.0, 4), (1.0, 6)])
def test_a_slow_node_is_waited_for_but_not_for_long(
    tmp_path: Path, seconds: float, exchanges: int
) -> None:
    """Together, all are done in two exchanges.

    As time goes on, the others are answered, and get the newest head last.
    """
    clinics = Clinics(tmp_path, 2)
    grid, now, pull = Grids(clinics).grid(), [0.0], []
    pulled = grid.pull_messages

    def slowly(identities: Sequence[str]) -> Any:
        pull.append(now[0])
        now[0] += seconds
        slow = [one for one in identities if grid._replies[one].metadata.src_node_id == 1001]
        return pulled([one for one in identities if one not in slow or len(pull) > 4])

    grid.pull_messages = slowly
    carrier = LocalCarrier.open(clinics.server)
    handler = module("server").CallHandler(
        carrier, lambda what, problem: pytest.fail(f"{what}: {problem}")
    )
    config = module("config").RunConfig(clinics.server)
    summary = module("server_app").poll_nodes(
        grid, handler, config, clock=lambda: now[0], sleep=lambda _: None
    )
    carrier.close()
    assert summary.exchanges == exchanges
    clinics.check()


def test_nodes_that_reply_one_after_another_are_answered_together(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path, 5)
    grid, now = Grids(clinics).grid(), [0.0]
    pulled = grid.pull_messages

    def one_by_one(identities: Sequence[str]) -> Any:
        now[0] += 1.0
        return pulled(identities[:1])

    grid.pull_messages = one_by_one
    carrier = LocalCarrier.open(clinics.server)
    handler = module("server").CallHandler(
        carrier, lambda what, problem: pytest.fail(f"{what}: {problem}")
    )
    summary = module("server_app").poll_nodes(
        grid,
        handler,
        module("config").RunConfig(clinics.server),
        clock=lambda: now[0],
        sleep=lambda _: None,
    )
    carrier.close()
    assert summary.exchanges == 2 * 5
    clinics.check()


def test_too_few_nodes_are_waited_for_until_the_deadline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clinics = Clinics(tmp_path, 2)
    grid = Grids(clinics, fewest_nodes=3, deadline_seconds=0.05).run()
    assert grid.sent == 0
    assert "2 nodes are connected, 3 are needed: nothing is done" in caplog.text


def test_a_server_that_polls_forever_sees_what_comes_later(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path, 2)
    serving, plan = module("server_app"), module("config")
    grid = Grids(clinics).grid()
    carrier = LocalCarrier.open(clinics.server)

    def sleep(seconds: float) -> None:
        assert seconds == 7.0
        if len(pauses) == 2:
            raise KilledError
        pauses.append(seconds)
        clinics.forget("clinic-01", 1)

    pauses: list[float] = []
    handler = module("server").CallHandler(
        carrier, lambda what, problem: pytest.fail(f"{what}: {problem}")
    )
    with pytest.raises(KilledError):
        serving.poll_nodes(
            grid,
            handler,
            plan.RunConfig(clinics.server, until="forever", poll_seconds=7.0),
            sleep=sleep,
        )
    carrier.close()
    assert len(clinics.retained["clinic-01"]) == 3
    clinics.check()


def test_grams_of_thirteen_megabytes_travel(tmp_path: Path) -> None:
    clinics = Clinics(
        tmp_path, 2, spec=Spec(dim=1280, labels=("a", "b"), gamma=1.0), samples=3, message="gram"
    )
    grid = Grids(clinics).run()
    assert grid.bytes > 2 * 13_000_000
    clinics.check()


def test_a_round_of_secure_aggregation_travels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All its phases, in one run; and too few clients wait, and the run says so."""
    spec = Spec(
        dim=4, labels=("a", "b"), gamma=0.5, messages=("masked",), aggregation=Aggregation(fewest=3)
    )
    clinics = Clinics(tmp_path, 4, spec=spec)
    app, grids = (
        module("server_app").server_app(Settings(gather_for=0.1)),
        Grids(clinics, round_seconds=1.0),
    )
    for _ in range(2):
        grids.grid().run_server(app)
        clinics.check()
        for name in clinics.retained:
            clinics.forget(name, 1)
    with caplog.at_level(logging.INFO, "flwr"):
        grids.grid(names=["clinic-00", "clinic-01"]).run_server(app)
    assert (
        "0 requests applied, 2 clients seen, 0 with problems, 2 waiting for others" in caplog.text
    )
    grids.grid().run_server(app)
    clinics.check()


def test_our_part_stands_beside_others(tmp_path: Path) -> None:
    flwr = importlib.import_module("flwr.clientapp")
    records = importlib.import_module("flwr.app")
    clinics = Clinics(tmp_path, 2)
    app, trained = flwr.ClientApp(), []

    def train(message: Any, context: Any) -> Any:
        trained.append(context.node_id)
        return records.Message(message.content, reply_to=message)

    app.train()(train)
    module("client_app").register(app)
    grid = Grids(clinics).grid(app=app)
    server = importlib.import_module("flwr.serverapp").ServerApp()

    def main(grid: Any, context: Any) -> None:
        messages = [
            records.Message(records.RecordDict(), node, "train") for node in grid.get_node_ids()
        ]
        assert len(list(grid.send_and_receive(messages))) == 2
        module("server_app").serve(grid, context)

    server.main()(main)
    grid.run_server(server)
    assert trained == [1000, 1001]
    clinics.check()


def test_a_simulated_node_has_the_store_of_its_partition(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path, 3)
    client_folder = module("client_app").client_folder
    config = {"expunge-clients": str(tmp_path / "clients" / "*")}
    assert [
        client_folder({"partition-id": number, "num-partitions": 3}, config).name
        for number in range(3)
    ] == list(clinics.retained)
    assert client_folder({"partition-id": 0, "expunge-client": "/x"}, config) == Path("/x")
    for node, run in (({"partition-id": 3}, config), ({"partition-id": 0}, {}), ({}, config)):
        with pytest.raises(InputError):
            client_folder(node, run)


def test_a_wrong_config_of_a_node_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clinics = Clinics(tmp_path, 1)
    grid = Grids(clinics).grid()
    grid.nodes = {7: {}, 8: {"expunge-client": str(clinics.folder("clinic-00"))}}
    grid.run_server(module("server_app").server_app())
    assert "node-7 could not go on: this node does not know its client" in caplog.text
    clinics.check()


def test_a_message_of_others_is_not_read_as_ours() -> None:
    records, wire = importlib.import_module("flwr.app"), module("records")
    note, parts = records.ConfigRecord({"note": b"{}"}), records.ArrayRecord()
    assert (
        wire.from_records(records.RecordDict({"expunge": note, "expunge.parts": parts})).note
        == b"{}"
    )
    for content in (
        {},
        {"expunge": note},
        {"expunge": records.ConfigRecord({"note": "text"}), "expunge.parts": parts},
        {"expunge": parts, "expunge.parts": parts},
        {"expunge": note, "expunge.parts": note},
        {
            "expunge": note,
            "expunge.parts": records.ArrayRecord({"part": records.Array(np.zeros(2))}),
        },
    ):
        with pytest.raises(FormatError):
            wire.from_records(records.RecordDict(content))


def test_a_node_that_talks_nonsense_does_not_hold_up_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flwr, records = importlib.import_module("flwr.clientapp"), importlib.import_module("flwr.app")
    clinics = Clinics(tmp_path, 2)
    honest, app = module("client_app").client_app(), flwr.ClientApp()

    def sometimes(message: Any, context: Any) -> Any:
        return (
            records.Message(records.RecordDict(), reply_to=message)
            if context.node_id == 1000
            else honest(message, context)
        )

    app.query("expunge")(sometimes)
    grid = Grids(clinics).grid(app=app)
    grid.run_server(module("server_app").server_app())
    assert "node 1000 says what cannot be understood" in caplog.text
    clinics.check(["clinic-01"])


def test_an_enrolment_travels_too(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path, 1)
    with clinics.service():
        token = clinics.token("clinic-50")
    (tmp_path / "token").write_text(token.to_text() + "\n")
    grid = Grids(clinics).grid()
    grid.nodes[2000] = {
        "expunge-client": str(clinics.folder("clinic-50")),
        "expunge-token": str(tmp_path / "token"),
    }
    grid.run_server(module("server_app").server_app())
    clinics.retained["clinic-50"] = {}
    clinics.add("clinic-50", 3)
    grid.run_server(module("server_app").server_app())
    clinics.check()
