"""Secure aggregation over HTTPS: clients that wait are answered when something has changed, and bad
turns are not read whole.
"""

from __future__ import annotations

import json
import shutil
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from expunge import Aggregation, Spec
from expunge.client import Agent, SyncResult
from expunge.crypto import SigningKey
from expunge.errors import CarrierError, ExpungeError
from expunge.secagg import Opening, Participant
from expunge.secagg import messages as rounds
from expunge.server.http.limits import Limits
from expunge.server.http.run import Listening, serve
from expunge.server.http.tls import TlsFiles, make_tls
from expunge.server.state import Settings
from expunge.transport.http import HttpCarrier
from expunge.wire import payloads
from expunge.wire.schema import UNDISCLOSED
from support.federation import make_key, scratch
from support.https_server import HOST, Served, Site
from support.lying_rounds import complaint_of
from support.masked_round import RULES, SPEC, Circle

GATHER = 0.5


class Online:
    """A circle whose server is reached by HTTPS."""

    def __init__(
        self,
        path: Path,
        clients: int,
        *,
        limits: Limits | None = None,
        spec: Spec = SPEC,
        **settings: Any,
    ) -> None:
        options = {"gather_for": GATHER, "phase_for": 30.0, "erase_within": 3600} | settings
        self.circle = Circle(
            path, clients, spec=spec, settings=Settings(**options), seconds=time.monotonic
        )
        self.tls: TlsFiles = make_tls(path / "tls", [HOST])
        ready, said = threading.Event(), list[Listening]()
        self._thread = threading.Thread(
            target=serve,
            args=(self.circle.service,),
            kwargs={
                "host": HOST,
                "port": 0,
                "certificate": self.tls.certificate,
                "key": self.tls.key,
                "limits": limits,
                "ready": lambda listening: (said.append(listening), ready.set()),
            },
            daemon=True,
        )
        self._thread.start()
        assert ready.wait(30)
        (self.listening,) = said
        self.url = self.listening.urls[0]
        self.calls: Counter[str] = Counter()
        self.slept: Counter[str] = Counter()
        self._carriers: list[HttpCarrier] = []

    @property
    def served(self) -> Served:
        site = Site(
            self.circle.service, self.circle.federation.operator.key, self.circle.federation.path
        )
        return Served(site, self.url, self.tls, self.listening)

    def agent(self, name: str, **options: Any) -> Agent:
        """An agent whose calls and pauses are counted."""
        carrier = HttpCarrier(self.url, ca=self.tls.ca_text, timeout=60.0)
        self._carriers.append(carrier)
        aggregate = carrier.aggregate

        def counted(data: bytes) -> bytes:
            self.calls[name] += 1
            return aggregate(data)

        def sleep(seconds: float) -> None:
            self.slept[name] += 1
            time.sleep(seconds)

        carrier.aggregate = counted  # type: ignore[method-assign]
        usual = {"wall_clock": self.circle.federation.clock, "sleep": sleep}
        return Agent(self.circle.stores[name], carrier, **(usual | options))

    def in_threads(
        self, names: list[str], act: Callable[[Agent], SyncResult], patience: float = 60.0
    ) -> dict[str, SyncResult]:
        done: dict[str, SyncResult] = {}
        problems: list[BaseException] = []

        def run(name: str) -> None:
            try:
                done[name] = act(self.agent(name, patience=patience))
            except BaseException as problem:  # told to the test
                problems.append(problem)

        threads = [threading.Thread(target=run, args=(name,)) for name in names]
        for name, thread in zip(names, threads, strict=True):
            self.circle.offered[name, self.circle.stores[name].sequence + 1] = dict(
                self.circle.held[name]
            )
            thread.start()
        for thread in threads:
            thread.join(90)
        assert problems == []
        return done

    def close(self) -> None:
        for carrier in self._carriers:
            carrier.close()
        self.listening.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        for store in self.circle.stores.values():
            store.close()


@contextmanager
def online(clients: int, **options: Any) -> Iterator[Online]:
    one = Online(scratch(), clients, **options)
    try:
        yield one
    finally:
        one.close()
        shutil.rmtree(one.circle.path)


def test_an_order_about_one_sample_at_one_of_three_clients_completes() -> None:
    """Nobody else ever changes anything; all sync now and then, each at its own time. The server's
    days take a second: the order completes long before its deadline.
    """
    with online(3) as place:
        circle = place.circle
        circle.everybody_adds()
        (sample,) = circle.add("c1", 1, "somebody")
        place.in_threads(circle.names, lambda agent: agent.sync())
        begun, clock = time.monotonic(), circle.federation.clock
        number = circle.federation.operator.command("order", subject="somebody", days=30)["order"]
        filed = clock.now
        del circle.held["c1"][sample]

        def visit(agent: Agent) -> SyncResult:
            while True:
                clock.now = filed + 86400 * (time.monotonic() - begun)
                done = agent.sync()
                told = circle.federation.operator.ask("show-order", order=number)
                if told["state"] != "open":
                    return done
                time.sleep(0.2 + 0.1 * circle.names.index(agent.store.name))

        place.in_threads(circle.names, visit, patience=2.0)
        told = circle.federation.operator.ask("show-order", order=number)
        assert told["state"] == "complete"
        assert {answer["found"] for answer in told["answers"]} == {UNDISCLOSED}
        *_, last = circle.entries("aggregated")
        assert (last["added"], last["deleted"]) == (0, 1)
        assert [member["client"] for member in last["clients"]] == circle.names


EVERY, WINDOW = 3600, 300
SCHEDULED = replace(SPEC, aggregation=Aggregation(fewest=3, every=EVERY, window=WINDOW))


def test_an_order_about_one_sample_at_one_of_three_clients_completes_on_a_schedule() -> None:
    """Nobody else ever changes anything; all sync every quarter of an hour."""
    with online(3, spec=SCHEDULED, gather_for=3600.0) as place:
        circle, clock = place.circle, place.circle.federation.clock
        clock.now = clock.now // EVERY * EVERY + EVERY
        circle.everybody_adds()
        (sample,) = circle.add("c1", 1, "somebody")
        done = place.in_threads(circle.names, lambda agent: agent.sync())
        assert [len(one.receipts) for one in done.values()] == [1, 1, 1]
        clock.now += WINDOW + 100
        ask = circle.federation.operator.ask
        number = circle.federation.operator.command("order", subject="somebody", days=1)["order"]
        filed, in_vain = clock.now, 0
        del circle.held["c1"][sample]
        place.calls.clear()
        while True:
            clock.now = (clock.now // 900 + 1) * 900
            done = place.in_threads(circle.names, lambda agent: agent.sync())
            if ask("show-order", order=number)["state"] == "complete":
                break
            assert all("the next round begins on" in one.waiting for one in done.values())
            assert not place.calls  # no client asks for a round
            in_vain += 1
        assert in_vain == 3
        assert clock.now < filed + 86400
        assert not place.slept
        *_, last = circle.entries("aggregated")
        assert (last["added"], last["deleted"]) == (0, 1)
        assert [member["client"] for member in last["clients"]] == circle.names
        circle.check_whole()


def test_a_client_that_is_early_is_answered_when_the_window_begins() -> None:
    with online(3, spec=SCHEDULED) as place:
        circle, clock = place.circle, place.circle.federation.clock
        begin = clock.now // EVERY * EVERY + EVERY
        clock.now = begin - 30
        circle.add("c0")
        rounds = circle.service.rounds
        assert rounds is not None

        def come(agent: Agent) -> SyncResult:
            if agent.store.name != "c0":
                while not rounds._watching:
                    time.sleep(0.01)
                clock.now = begin
                rounds.wake()
            return agent.sync()

        done = place.in_threads(circle.names, come)
        assert len(done["c0"].receipts) == 1
        assert not place.slept["c0"]
        circle.check_whole()


def test_five_clients_make_one_round_by_a_handful_of_calls_each() -> None:
    with online(5) as place:
        circle = place.circle
        circle.everybody_adds()
        done = place.in_threads(circle.names, lambda agent: agent.sync())
        circle.check_whole()
        assert all(len(one.receipts) == 1 for one in done.values())
        (entry,) = circle.entries("aggregated")
        assert [member["client"] for member in entry["clients"]] == circle.names
        # A question, five messages, and one question in each phase that waits for the others.
        assert all(calls <= 12 for calls in place.calls.values()), place.calls
        assert not place.slept


def test_a_client_that_waits_for_others_does_not_ask_again_and_again() -> None:
    """One waits for seconds until the others come: the server holds its answer."""
    with online(3) as place:
        circle = place.circle
        circle.everybody_adds()
        waiting = threading.Event()

        def late(agent: Agent) -> SyncResult:
            if agent.store.name != "c0":
                waiting.wait(30)
            return agent.sync()

        timer = threading.Timer(1.0, waiting.set)
        timer.start()
        place.in_threads(circle.names, late)
        circle.check_whole()
        assert place.calls["c0"] <= 12
        assert not place.slept["c0"]


def test_a_round_goes_on_without_one_that_does_not_come_back_and_the_next_has_it() -> None:
    with online(4, phase_for=0.6) as place:
        circle = place.circle
        circle.everybody_adds()
        agent = place.agent("c3")
        circle.offered["c3", 1] = dict(circle.held["c3"])
        assert agent.sync().waiting  # it has joined, and does not wait
        place.in_threads(["c0", "c1", "c2"], _until_receipted)
        assert [member["client"] for member in circle.entries("aggregated")[0]["clients"]] == [
            "c0",
            "c1",
            "c2",
        ]
        circle.check()
        circle.everybody_adds("c0", "c1")
        place.in_threads(["c0", "c1", "c3"], _until_receipted)
        circle.check_whole()


def _until_receipted(agent: Agent) -> SyncResult:
    """Some learn first that an old round is over; on a busy machine a phase may be too short."""
    for _ in range(20):
        done = agent.sync()
        if done.receipts:
            break
    return done


def test_a_server_that_stops_does_not_wait_for_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who waits is answered; held for as long as it asks for here, it would keep the server from
    stopping.
    """
    monkeypatch.setattr("expunge.client.contributor.LONGEST_WAIT", 1 << 20)
    with online(3, limits=Limits(wait_seconds=1e6)) as place:
        circle = place.circle
        circle.everybody_adds()
        agent = place.agent("c0", patience=1e6, attempts=1)
        problems: list[ExpungeError] = []

        def wait() -> None:
            try:
                agent.sync()
            except ExpungeError as problem:
                problems.append(problem)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        while place.calls["c0"] < 3 or not circle.service.rounds._watching:
            time.sleep(0.01)
        place.listening.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert isinstance(problems[0], CarrierError)  # it asked again, and there was nobody
        assert place.calls["c0"] == 4


# -- turns that are refused ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place() -> Iterator[Online]:
    with online(3) as one:
        yield one


def masked_header(place: Online, key: SigningKey, name: str = "c0", **changes: Any) -> bytes:
    """The beginning of a message that never comes to its end."""
    header = {
        "body": "0" * 64,
        "client": name,
        "deliveries": "0" * 64,
        "federation": place.circle.federation.id,
        "kind": "masked",
        "length": 1 << 26,
        "roster": "0" * 64,
        "round": "0" * 32,
        "sequence": 1,
    } | changes
    return rounds.sign(header, b"", key)


def refused(place: Online, start: bytes, length: int) -> tuple[int, dict[str, Any]]:
    """What is answered to a body of which only the beginning is sent: nobody waits for the rest."""
    connection = place.served.raw()
    head = (
        "POST /v1/aggregations HTTP/1.1\r\nHost: x\r\nContent-Type: "
        f"application/octet-stream\r\nContent-Length: {length}\r\n\r\n"
    )
    try:
        connection.sendall(head.encode() + start)
        data = b""
        while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < _length(data):
            piece = connection.recv(65536)
            if not piece:
                break
            data += piece
    finally:
        with suppress(OSError, ssl.SSLError):
            connection.close()
    status = int(data.split(b" ", 2)[1])
    return status, json.loads(data.partition(b"\r\n\r\n")[2])


def _length(data: bytes) -> int:
    lines = data.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    return next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))


FILLING = b"\0" * 70_000  # beyond what is read of anybody


def test_a_turn_of_a_gigabyte_is_refused_before_it_is_read(place: Online) -> None:
    key = place.circle.stores["c0"].key
    status, told = refused(place, masked_header(place, key) + FILLING, 1 << 30)
    assert (status, told["code"]) == (413, "too-large")


def test_a_turn_of_an_unknown_client_is_refused_before_it_is_read(place: Online) -> None:
    status, told = refused(place, masked_header(place, make_key(), "nobody") + FILLING, 100 << 20)
    assert (status, told["code"]) == (403, "unknown-actor")


def test_a_turn_with_a_bad_signature_is_refused_before_it_is_read(place: Online) -> None:
    status, told = refused(place, masked_header(place, make_key()) + FILLING, 100 << 20)
    assert (status, told["code"]) == (403, "bad-signature")


def test_a_turn_of_another_federation_is_refused_before_it_is_read(place: Online) -> None:
    key = place.circle.stores["c0"].key
    status, told = refused(
        place, masked_header(place, key, federation="f" * 32) + FILLING, 100 << 20
    )
    assert (status, told["code"]) == (422, "wrong-federation")


def test_what_begins_as_no_turn_is_refused_before_it_is_read(place: Online) -> None:
    status, told = refused(place, FILLING, 100 << 20)
    assert (status, told["code"]) == (400, "malformed")
    status, told = refused(place, b"{" + FILLING, 100 << 20)
    assert (status, told["code"]) == (400, "malformed")


def test_short_turns_that_nobody_signed_are_refused(place: Online) -> None:
    circle = place.circle
    before = circle.service.rounds.pulse()[0]
    content = {
        "actor": "c0",
        "aggregation": "",
        "federation": circle.federation.id,
        "reset": False,
        "sequence": 1,
        "wait": 10**6,
    }
    opening = Opening(
        circle.federation.id, "0" * 32, "change", SPEC.data_digest, SPEC.labels_digest
    )
    join = Participant.join(opening, RULES, name="c0", sequence=1, key=make_key()).message
    officer = circle.federation.operator
    cases = [
        (payloads.sign("turn", content, make_key()), "bad-signature"),
        (payloads.sign("turn", content | {"actor": "nobody"}, make_key()), "unknown-actor"),
        (payloads.sign("turn", content | {"actor": "operator"}, officer.key), "not-allowed"),
        (
            payloads.sign("turn", content | {"federation": "f" * 32}, circle.stores["c0"].key),
            "wrong-federation",
        ),
        (join, "bad-signature"),
        (join[:-10], "malformed"),
        (b"", "malformed"),
        (b"{}", "malformed"),
    ]
    for data, code in cases:
        answer = place.served.ask("POST", "/v1/aggregations", data)
        assert json.loads(answer.data)["code"] == code, data[:80]
    assert circle.service.rounds.pulse()[0] == before


def test_a_complaint_that_cannot_be_read_is_refused_as_malformed() -> None:
    with online(3) as place:
        place.circle.everybody_adds()
        place.circle.until("masking", *reversed(place.circle.names))
        data = complaint_of(place.circle, "c1", "c0") + b"more"
        answer = place.served.ask("POST", "/v1/aggregations", data)
        assert (answer.status, json.loads(answer.data)["code"]) == (400, "malformed")


def test_a_wait_is_never_longer_than_the_server_allows() -> None:
    """Whatever a client asks for: here a year, while nobody else comes."""
    with online(3, limits=Limits(wait_seconds=0.3)) as place:
        store = place.circle.stores["c0"]
        content = {
            "actor": "c0",
            "aggregation": "",
            "federation": store.federation,
            "reset": False,
            "sequence": 1,
            "wait": 1 << 25,
        }
        carrier = HttpCarrier(place.url, ca=place.tls.ca_text, timeout=20.0)
        opened = payloads.open_unverified(
            "standing", carrier.aggregate(payloads.sign("turn", content, store.key))
        )[1]
        joined = Participant.join(
            Opening.from_json(opened["opening"]), RULES, name="c0", sequence=1, key=store.key
        )
        carrier.aggregate(joined.message)
        asked = content | {"aggregation": joined.opening.round}
        standing = payloads.open_unverified(
            "standing", carrier.aggregate(payloads.sign("turn", asked, store.key))
        )[1]
        assert (standing["phase"], standing["joined"]) == ("joining", 1)
        carrier.close()
