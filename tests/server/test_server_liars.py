"""Clients whose Grams are not of the samples that they committed to: what they can do is bounded,
and can be undone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from expunge.wire.messages import GramPart, Message
from support import commands
from support.federation import Client, Federation, together
from support.samples import SPEC, Sample, statistics_of

FAR = np.float32(8.0)
COMMITTED = [Sample(np.array([FAR, FAR, 0, 0]), 0)]
TOLD = [Sample(np.array([FAR, -FAR, 0, 0]), 0)]  # of the same counts and squares


@pytest.fixture
def federation(two_kinds: Federation, tmp_path: Path) -> Iterator[Federation]:
    with two_kinds.twin(tmp_path / "server") as federation:
        yield federation


def refused(federation: Federation, data: bytes, code: str) -> None:
    commands.refused(federation, code, federation.service.request, data)


def lying(federation: Federation, committed: list[Sample], told: list[Sample]) -> Client:
    """A client that adds the Gram of other samples than it commits to."""
    client = federation.enrol("liar")
    message = Message("gram", GramPart(statistics_of(SPEC, told))).to_bytes(SPEC)
    data = client.request(committed, kind="gram", message=message)
    client.settled(federation.service.request(data), committed)
    return client


def test_a_client_cannot_hide_statistics_behind_an_empty_account(federation: Federation) -> None:
    """What was added as one Gram and is deleted as other rows would leave statistics of no samples
    behind.
    """
    samples = [Sample(np.array(row, dtype=np.float32), 0) for row in ([1, 1, 0, 0], [2, 2, 0, 0])]
    others = [
        Sample(np.array(row, dtype=np.float32), 0) for row in ([1, 2, 0, 0], [2, 1, 0, 0])
    ]  # of the same diagonal
    client = lying(federation, samples, others)
    refused(federation, client.request((), samples), "impossible")
    refused(federation, client.request((), samples, leave=True), "impossible")
    one_by_one = client.request((), samples[:1])
    client.settled(federation.service.request(one_by_one), (), samples[:1])
    refused(federation, client.request((), samples[1:]), "impossible")


def test_the_ledger_opens_again_whatever_a_client_got_into_it(federation: Federation) -> None:
    """A share that alone is impossible is seen only when the others' samples are gone; it must
    never keep the server shut.
    """
    client, lab = lying(federation, COMMITTED, TOLD), federation.clients["lab"]
    client.send(federation.draw(1))
    refused(federation, client.request((), COMMITTED), "impossible")  # alone
    big = [Sample(np.eye(4, dtype=np.float32)[place] * 60, 0) for place in range(4)]
    futures = together(federation.service, [client.request((), COMMITTED), lab.request(big)])
    client.settled(futures[0].result(), (), COMMITTED)  # but not beside so much else
    lab.settled(futures[1].result(), big)
    federation.reopen()
    assert federation.service.status()["samples"] == len(federation.retained()) == 6 + 3 + 4 + 1


def test_whom_a_liar_stands_in_the_way_is_helped_by_forgetting_the_liar(
    federation: Federation,
) -> None:
    """What is left when the others go would be no Gram, so their deletions are refused; an audit
    shows why.
    """
    clinic, lab = federation.clients.values()
    lab.send([Sample(np.eye(4, dtype=np.float32)[place] * 60, 0) for place in range(4)])
    liar = lying(federation, COMMITTED, TOLD)
    liar.send(federation.draw(1), COMMITTED)
    everything = list(lab.retained)
    refused(federation, lab.request((), everything), "impossible")
    audit = federation.operator.command("audit")["audit"]
    for client in (clinic, lab, liar):
        client.answer_audits()
    federation.finish_audits()
    assert federation.operator.ask("show-audit", audit=audit)["different"] == ["liar"]
    federation.operator.command("forget-client", client="liar")
    liar.retained = []
    federation.check()
    lab.send((), everything)
    federation.check()


def test_squares_beyond_the_grid_are_refused(federation: Federation) -> None:
    """Taken in, one such "sample" would fill 128 bits: then every honest addition would overflow
    the ledger.
    """
    client, sample = federation.enrol("liar"), federation.draw(1)
    honest = statistics_of(SPEC, sample)
    body = bytearray(honest.to_bytes()[:-32])
    start = bytes(body).index(honest.diagonal()[0].to_bytes(16, "little"))
    body[start : start + 16] = ((1 << 127) - (1 << 90)).to_bytes(16, "little")
    told = bytes(body) + hashlib.sha256(body).digest()
    data = client.request(sample, kind="gram", message=len(told).to_bytes(8, "little") + told)
    refused(federation, data, "impossible")
    federation.clients["clinic"].send(federation.draw(1))
    federation.check()
