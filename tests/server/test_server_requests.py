"""Group commit: requests that wait together are applied together, and the outcome is that of one
after another.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from expunge.errors import CarrierError, RefusedError
from expunge.server.requests import Offer, Requests
from expunge.server.state import Settings
from expunge.wire.messages import GramPart, Message
from expunge.wire.request import OrderAnswer
from support.federation import Client, Federation, together, writer_of
from support.samples import SPEC, Sample, commitments_of, statistics_of


@pytest.fixture
def federation(tmp_path: Path):
    with Federation(tmp_path / "server") as federation:
        for name in ("clinic", "lab", "ward"):
            federation.enrol(name).send(federation.draw(5))
        yield federation


def stream(
    federation: Federation, client: Client, count: int
) -> list[tuple[bytes, list[Sample], list[Sample]]]:
    """Requests of one client that build on one another: each adds two samples and deletes one of
    the request before it.
    """
    made, last, start = [], list(client.retained[:1]), client.sequence
    for number in range(count):
        added = federation.draw(2)
        client.sequence = start + number
        made.append(
            (client.request(added, last, "gram" if number % 4 == 3 else "rows"), added, last)
        )
        last = added[:1]
    client.sequence = start
    return made


def round_of(answer: bytes, federation: Federation) -> int:
    return federation.read(answer).logged.entry["round"]


def code_of(future: Future[bytes]) -> str:
    problem = future.exception()
    assert isinstance(problem, RefusedError)
    return problem.code


def test_a_burst_takes_fewer_rounds_than_requests(federation: Federation) -> None:
    streams = {client.name: stream(federation, client, 8) for client in federation.clients.values()}
    turns = [(name, streams[name][number]) for number in range(8) for name in streams]
    before = federation.service.status()["round"]
    futures = together(federation.service, [data for _, (data, _, _) in turns])
    for (name, (_, added, deleted)), future in zip(turns, futures, strict=True):
        federation.clients[name].settled(future.result(), added, deleted)
    rounds = federation.service.status()["round"] - before
    assert 0 < rounds < len(turns) / 2
    federation.check()
    numbers = [round_of(future.result(), federation) for future in futures]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(before + 1, before + 1 + rounds))
    federation.reopen()
    federation.check()
    last = len(turns) - len(streams)  # the others were followed by a request, or came with it
    for (_, (data, _, _)), future in list(zip(turns, futures, strict=True))[last:]:
        assert federation.service.request(data) == future.result()


def test_an_answer_is_kept_until_the_next_request_shows_that_it_has_arrived(
    federation: Federation,
) -> None:
    client, officer = federation.clients["clinic"], federation.officer()
    order = officer.command("order", subject="somebody")["order"]
    sample = federation.draw(1)
    first = client.request(sample)
    receipt = federation.service.request(first)
    assert federation.service.request(first) == receipt
    client.settled(receipt, sample)
    for other in federation.clients.values():
        other.answer_order(order)  # which evidence needs
    with pytest.raises(RefusedError) as refusal:
        federation.service.request(first)
    assert refusal.value.code == "sequence-reused"
    answered = client.sequence
    client.send(federation.draw(1))
    client.send(federation.draw(1))
    answers = federation.service.state.storage.answers
    kept = [number for number in range(client.sequence + 1) if answers.get(client.name, number)]
    assert kept == [answered, client.sequence]
    assert officer.ask("bundle", order=order)
    officer.command("close-order", order=order)
    assert answers.get(client.name, answered) is None
    assert answers.get(client.name, client.sequence) is not None
    federation.reopen()


def test_without_group_commit_every_request_is_a_round(tmp_path: Path) -> None:
    with Federation(tmp_path / "server", settings=Settings(group_commit=False)) as federation:
        client = federation.enrol("clinic")
        client.send(federation.draw(3))
        made = stream(federation, client, 6)
        futures = together(federation.service, [data for data, _, _ in made])
        for future, (_, added, deleted) in zip(futures, made, strict=True):
            client.settled(future.result(), added, deleted)
        assert federation.service.status()["round"] == 7
        federation.check()


def test_the_digests_in_receipts_are_a_chain(federation: Federation) -> None:
    made = stream(federation, federation.clients["clinic"], 4)
    entries = [
        federation.read(one.result()).logged.entry
        for one in together(federation.service, [data for data, *_ in made])
    ]
    by_round: dict[int, set[tuple[str, str]]] = {}
    for entry in entries:
        by_round.setdefault(entry["round"], set()).add(
            (entry["ledger_before"], entry["ledger_after"])
        )
    steps = [by_round[number] for number in sorted(by_round)]
    assert all(len(step) == 1 for step in steps)  # requests of one round share their digests
    pairs = [next(iter(step)) for step in steps]
    assert all(later[0] == earlier[1] for earlier, later in pairwise(pairs))


def test_many_threads_at_once(federation: Federation) -> None:
    def work(client: Client) -> None:
        for number in range(12):
            kept = client.retained
            client.send(
                Federation.draw(federation, 1), kept[:1], "gram" if number % 5 == 4 else "rows"
            )

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work, client) for client in federation.clients.values()]:
            done.result()
    federation.check()
    assert federation.service.status()["waiting"] == 0


def impossible_gram(client: Client) -> bytes:
    """Passes what is cheap to check: counts and diagonal.

    Only the whole ledger shows that no samples have such a Gram.
    """
    ours, size = [Sample(np.zeros(4, dtype=np.float32), 0)], np.float32(30.0)
    told = [Sample(np.array([size, size, 0, 0]), 0)]
    statistics = statistics_of(SPEC, [*told, *told]) - statistics_of(
        SPEC, [Sample(np.array([size, -size, 0, 0]), 0)]
    )
    message = Message("gram", GramPart(statistics)).to_bytes(SPEC)
    return client.request(
        kind="gram", message_kind="gram", message=message, named=(commitments_of(SPEC, ours), [])
    )


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_bad_request_among_good_ones_is_refused_alone(federation: Federation, place: int) -> None:
    clinic, lab, ward = federation.clients.values()
    bad = impossible_gram(ward)
    good = stream(federation, clinic, 2) + stream(federation, lab, 2)
    offers = [data for data, _, _ in good]
    futures = together(federation.service, [*offers[:place], bad, *offers[place:]])
    assert code_of(futures.pop(place)) == "impossible"
    for client, future, (_, added, deleted) in zip(
        [clinic] * 2 + [lab] * 2, futures, good, strict=True
    ):
        client.settled(future.result(), added, deleted)
    federation.check()
    ward.send(federation.draw(1))
    federation.check()


def test_an_impossible_deletion_by_gram_is_refused_alone(federation: Federation) -> None:
    clinic, lab, ward = federation.clients.values()
    turned = [
        Sample(one.features * np.float32([1, -1, 1, -1]), one.target) for one in ward.retained
    ]
    message = Message("gram", None, GramPart(statistics_of(SPEC, turned[:4]))).to_bytes(SPEC)
    named = ([], commitments_of(SPEC, ward.retained[:4]))
    bad = ward.request(message_kind="gram", message=message, named=named)
    one, two = federation.draw(1), federation.draw(1)
    futures = together(
        federation.service, [clinic.request(one), bad, lab.request(two, lab.retained[:1])]
    )
    assert code_of(futures[1]) == "impossible"
    clinic.settled(futures[0].result(), one)
    lab.settled(futures[2].result(), two, lab.retained[:1])
    federation.check()


def test_the_same_request_twice_in_one_batch_is_applied_once(federation: Federation) -> None:
    client, sample = federation.clients["clinic"], federation.draw(1)
    data = client.request(sample, client.retained[:1])
    futures = together(federation.service, [data] * 3)
    answers = {future.result() for future in futures}
    assert len(answers) == 1
    client.settled(answers.pop(), sample, client.retained[:1])
    federation.check()


def test_the_same_bad_request_twice_in_one_batch_is_refused_twice(federation: Federation) -> None:
    clinic, lab, _ = federation.clients.values()
    bad, sample = impossible_gram(clinic), federation.draw(1)
    futures = together(federation.service, [bad, lab.request(sample), bad])
    assert [code_of(futures[0]), code_of(futures[2])] == ["impossible"] * 2
    lab.settled(futures[1].result(), sample)
    federation.check()


def test_two_requests_of_one_number_in_one_batch(federation: Federation) -> None:
    client = federation.clients["clinic"]
    first, second = federation.draw(1), federation.draw(1)
    futures = together(federation.service, [client.request(first), client.request(second)])
    client.settled(futures[0].result(), first)
    assert code_of(futures[1]) == "sequence-reused"
    federation.check()


def test_requests_of_one_batch_see_one_another(federation: Federation) -> None:
    client = federation.clients["clinic"]
    sample = federation.draw(1)
    add = client.request(sample)
    client.sequence += 1
    again = client.request(sample)
    delete = client.request((), sample)
    client.sequence += 1
    twice = client.request((), sample)
    client.sequence -= 2
    futures = together(federation.service, [add, again, delete, twice])
    client.settled(futures[0].result(), sample)
    assert code_of(futures[1]) == "already-live"
    client.settled(futures[2].result(), (), sample)
    assert code_of(futures[3]) == "not-live"
    federation.check()


def test_an_order_is_answered_once_though_two_requests_of_a_batch_try(
    federation: Federation,
) -> None:
    client = federation.clients["clinic"]
    order = federation.operator.command("order", subject="somebody")["order"]
    answer = (OrderAnswer(order, 0),)
    first = client.request(orders=answer)
    client.sequence += 1
    second = client.request(orders=answer)
    client.sequence -= 1
    futures = together(federation.service, [first, second])
    client.settled(futures[0].result())
    assert code_of(futures[1]) == "unknown-order"
    assert len(federation.entries("answered")) == 1


def test_emptying_an_account_in_one_batch_is_checked_as_a_whole(federation: Federation) -> None:
    client = federation.enrol("new")
    samples = federation.draw(2)
    add = client.request(samples, kind="gram")
    client.sequence += 1
    delete = client.request((), samples, leave=True)
    client.sequence -= 1
    futures = together(federation.service, [add, delete])
    client.settled(futures[0].result(), samples)
    client.settled(futures[1].result(), (), samples)
    federation.check()


def test_whoever_stops_waiting_does_not_disturb_the_others(federation: Federation) -> None:
    clinic, lab, ward = federation.clients.values()
    samples = [federation.draw(1) for _ in range(3)]
    lost = clinic.request(samples[0])
    offers = [lost, lab.request(samples[1], sequence=99), ward.request(samples[2])]
    futures = together(federation.service, offers, lost=(0, 1))
    ward.settled(futures[2].result(), samples[2])
    clinic.settled(
        federation.service.request(lost), samples[0]
    )  # taken or not, it is answered when it is offered again
    federation.check()


def test_a_service_that_is_closing_finishes_what_waits_and_refuses_the_rest(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "server")
    client = federation.enrol("clinic")
    sample = federation.draw(1)
    data = client.request(sample)
    futures = together(federation.service, [data])
    federation.close()
    federation.close()  # twice does no harm
    answer = futures[0].result()
    with pytest.raises(RefusedError) as refusal:
        writer_of(federation.service).do(lambda: None)
    assert refusal.value.code == "storage"
    federation.service = federation.opened()
    assert federation.service.request(data) == answer
    federation.close()


def test_a_request_twice_in_a_round_that_fails_after_its_commit(tmp_path: Path) -> None:
    """The writer must live on, whatever happens in a round."""
    failures: list[str] = []

    def hook(where: str) -> None:
        if failures and where == failures[0]:
            failures.pop()
            raise OSError(28, "no space left")

    with Federation(tmp_path / "server", hook=hook) as federation:
        client, sample = federation.enrol("clinic"), federation.draw(2)
        data = client.request(sample)
        failures.append("after commit")
        first, second = (
            future.result(timeout=10) for future in together(federation.service, [data, data])
        )
        assert first == second
        client.settled(first, sample)
        client.send(federation.draw(1))
        federation.check()


def test_whatever_breaks_in_a_round_the_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, broken = Requests.run, True

    def run_or_break(requests: Requests, offers: list[Offer]) -> None:
        if broken:
            raise IndexError("that nobody foresaw")
        run(requests, offers)

    monkeypatch.setattr(Requests, "run", run_or_break)
    with Federation(tmp_path / "server") as federation:
        client, sample = federation.enrol("clinic"), federation.draw(1)
        data = client.request(sample)
        with pytest.raises(CarrierError, match="offer this again"):
            federation.service.offer(data).result(timeout=10)
        broken = False
        client.settled(federation.service.offer(data).result(timeout=10), sample)
        federation.check()
