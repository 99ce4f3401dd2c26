"""Rates and room: laws of buckets and budgets, and who pays for what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.crypto import SigningKey
from expunge.errors import RefusedError
from expunge.server.http.gateway import Gateway
from expunge.server.http.limits import Buckets, Budget, Limits, peer_name
from expunge.server.http.logs import Note
from support.https_server import HandClient, Site, served, site


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.integers(1, 50), st.lists(st.tuples(st.floats(0, 120), st.integers(0, 40)), max_size=20))
def test_a_bucket_never_gives_more_than_a_minutes_worth_and_its_rate(
    rate: int, steps: list[tuple[float, int]]
) -> None:
    clock = Clock()
    buckets, given_out = Buckets(rate, clock), 0
    for pause, asked in steps:
        clock.now += pause
        given_out += sum(buckets.take("one") == 0.0 for _ in range(asked))
        assert given_out <= rate + (clock.now - 100.0) * rate / 60.0 + 1e-6


@given(st.integers(1, 100))
def test_an_empty_bucket_says_when_there_is_a_token_again(rate: int) -> None:
    clock = Clock()
    buckets = Buckets(rate, clock)
    assert [buckets.take("one") for _ in range(rate)] == [0.0] * rate
    wait = buckets.take("one")
    assert wait == pytest.approx(60.0 / rate)
    assert buckets.take("another") == 0.0
    clock.now += wait / 2
    assert buckets.take("one") > 0.0
    clock.now += wait / 2 + 1e-9
    assert buckets.take("one") == 0.0
    assert buckets.take("one") > 0.0
    buckets.give_back("one")
    assert buckets.take("one", 0.0) == 0.0  # only a look
    assert buckets.take("one") == 0.0


def test_giving_back_does_not_fill_beyond_the_brim_and_clocks_may_jump_back() -> None:
    clock = Clock()
    buckets = Buckets(2, clock)
    for _ in range(5):
        buckets.give_back("one")
    clock.now -= 1000.0
    assert [buckets.take("one") for _ in range(2)] == [0.0, 0.0]
    assert buckets.take("one") > 0.0


def test_no_limit_and_many_names() -> None:
    assert all(Buckets(0, Clock()).take("one") == 0.0 for _ in range(1000))
    clock = Clock()
    buckets = Buckets(1, clock)
    for number in range(20_000):
        assert buckets.take(f"peer-{number}") == 0.0
    assert len(buckets._buckets) == 10_000
    assert buckets.take("peer-19999") > 0.0


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_addresses_are_counted_by_subscriber(host: str, name: str) -> None:
    assert peer_name(host) == name


@given(st.lists(st.tuples(st.integers(1, 120), st.integers(0, 3)), min_size=1, max_size=30))
def test_a_budget_is_never_overdrawn_and_all_get_their_turn(jobs: list[tuple[int, int]]) -> None:
    async def run() -> None:
        budget, most = Budget(100), 0

        async def hold(amount: int, turns: int) -> None:
            nonlocal most
            async with budget.reserved(amount, 10.0):
                most = max(most, budget.held)
                for _ in range(turns):
                    await asyncio.sleep(0)

        await asyncio.gather(*(hold(*job) for job in jobs))
        assert most <= 100
        assert budget.held == 0

    asyncio.run(run())


def test_a_budget_serves_in_turn_and_forgets_those_who_gave_up() -> None:
    async def run() -> None:
        budget, order = Budget(100), []

        async def hold(name: str, amount: int, until: asyncio.Event, seconds: float = 10.0) -> None:
            async with budget.reserved(amount, seconds):
                order.append(name)
                await until.wait()

        go, never = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(hold("first", 60, go))
        await asyncio.sleep(0)
        impatient = asyncio.create_task(hold("impatient", 80, go, 0.01))
        cancelled = asyncio.create_task(hold("cancelled", 90, never))
        small = asyncio.create_task(hold("small", 10, go))  # would fit, but it is not its turn
        await asyncio.sleep(0)
        assert order == ["first"]
        with pytest.raises(RefusedError) as refused:
            await impatient
        assert refused.value.code == "too-many"
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        go.set()
        await asyncio.gather(first, small)
        assert order == ["first", "small"]
        assert budget.held == 0

    asyncio.run(run())


def test_a_share_given_to_one_who_is_just_leaving_is_not_lost() -> None:
    async def run() -> None:
        budget = Budget(10)
        first = budget.reserved(10, 1.0)
        await first.__aenter__()

        async def wait() -> None:
            async with budget.reserved(10, 10.0):
                pass

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        await first.__aexit__(None, None, None)  # its turn has come...
        waiting.cancel()  # ...and it is gone
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert budget.held == 0

    asyncio.run(run())


# -- who pays --------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path / "server", requests_per_minute=3) as one:
        yield one


def offers(gateway: Gateway, bodies: list[bytes]) -> list[tuple[str, Note]]:
    """The outcome of each body, offered as a client's request."""

    def source(body: bytes) -> Callable[[], object]:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body, "more_body": False}

        return receive

    async def run() -> list[tuple[str, Note]]:
        outcomes = []
        for body in bodies:
            note, headers = (
                Note("POST", "192.0.2.1"),
                [(b"content-length", str(len(body)).encode())],
            )
            try:
                await gateway.request(note, headers, source(body))  # type: ignore[arg-type]
            except RefusedError as refusal:
                outcomes.append((refusal.code, note))
            else:
                outcomes.append(("ok", note))
        return outcomes

    return asyncio.run(run())


def test_an_actor_is_limited_by_name_and_an_impostor_cannot_use_it_up(place: Site) -> None:
    clock = Clock()
    gateway = Gateway(place.service, clock=clock)
    try:
        client, other = place.client("limited"), place.client("other")
        impostor = HandClient("limited", SigningKey(bytes(32)), place.federation, 2)
        forged = offers(gateway, [impostor.request(add=[0]) for _ in range(10)])
        assert {code for code, _ in forged} == {"bad-signature"}
        assert not any(note.is_proven for _, note in forged)
        found = offers(gateway, [client.request(add=[number]) for number in range(4)])
        assert [code for code, _ in found] == ["ok", "ok", "ok", "too-many"]
        assert [(note.actor, note.sequence) for _, note in found[:3]] == [
            ("limited", 1),
            ("limited", 2),
            ("limited", 3),
        ]
        assert offers(gateway, [other.request(add=[0])])[0][0] == "ok"
        clock.now += 20.0
        client.sequence = 3
        refused = offers(
            gateway, [client.request(add=[0])]
        )  # what is signed and refused is paid for, and logged with its actor
        assert refused[0][0] == "already-live"
        assert refused[0][1].is_proven
        client.sequence = 3
        assert offers(gateway, [client.request(add=[5])])[0][0] == "too-many"
    finally:
        gateway.close()


def test_an_address_is_limited_unless_it_signs(tmp_path: Path) -> None:
    with served(tmp_path, requests_per_minute=4) as server:
        clients = [server.site.client(f"client-{number}") for number in range(3)]
        for client in clients:
            for number in range(3):
                assert (
                    server.ask("POST", "/v1/requests", client.request(add=[number])).status == 200
                )
        statuses = [server.ask("GET", "/v1/federation").status for _ in range(5)]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        answer = server.ask("GET", "/v1/federation")
        assert int(answer.headers["retry-after"]) > 0
        assert server.ask("GET", "/healthz").status == server.ask("GET", "/readyz").status == 200


def test_too_many_connections_are_turned_away_and_room_comes_back(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(most_connections=4)) as server:
        held = []
        try:
            for _ in range(4):
                connection = server.connect()
                connection.connect()
                held.append(connection)
            assert server.ask("GET", "/healthz").status == 503
        finally:
            for connection in held:
                connection.close()
        statuses = {server.ask("GET", "/healthz").status for _ in range(20)}
        assert 200 in statuses
