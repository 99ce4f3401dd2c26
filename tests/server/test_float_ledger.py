"""A federation in float64: nothing is exact, and everything says so; what is not arithmetic holds
as everywhere.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from expunge import Spec, solve
from expunge.errors import RefusedError
from expunge.evidence import published_head
from support.federation import Federation
from support.samples import Sample, commitments_of, statistics_of

SPEC = Spec(dim=4, labels=("cat", "dog", "eel"), gamma=0.5, messages=("factor", "gram", "rows"))
EXACT = Spec(dim=4, labels=("cat", "dog", "eel"), gamma=0.5)


@pytest.fixture(params=["cholesky", "woodbury"])
def federation(tmp_path: Path, request: pytest.FixtureRequest):
    with Federation(tmp_path / "server", SPEC, solver=request.param) as federation:
        federation.enrol("clinic").send(federation.draw(9), kind="factor")
        federation.enrol("lab").send(federation.draw(6))
        yield federation


def check(federation: Federation) -> None:
    """Close to retraining: rounding errors, and no more."""
    retrained = solve(statistics_of(EXACT, federation.retained())).weights
    head, certificate = published_head.read(federation.service.head() or b"", federation.chain())
    assert np.allclose(head.weights, retrained, rtol=0, atol=1e-9)
    assert not certificate.exact
    assert (certificate.bound, bool(certificate.deviation)) == (None, True)
    assert certificate.count == len(federation.retained())


def test_all_kinds_of_messages_and_restarts(federation: Federation) -> None:
    clinic, lab = federation.clients.values()
    check(federation)
    for kind in ("factor", "rows", "gram"):
        clinic.send(federation.draw(2), clinic.retained[:1], kind)
        lab.send(federation.draw(1), lab.retained[:2], kind)
        check(federation)
        federation.reopen()
        check(federation)
        federation.fold()
        check(federation)
        federation.reopen()
        check(federation)
    federation.operator.command("amend", gamma=(0.25).hex(), labels=["cat", "dog", "eel", "fox"])
    federation.spec = federation.spec.with_gamma(0.25).with_labels("fox")
    clinic.send(federation.draw(3), kind="factor")
    federation.reopen()
    assert federation.service.status()["samples"] == len(federation.retained())


def test_a_client_is_forgotten(federation: Federation) -> None:
    told = federation.operator.command("forget-client", client="lab")
    assert told["count"] == 6
    federation.clients["lab"].retained = []
    check(federation)
    federation.reopen()
    check(federation)


def test_there_is_nothing_exact_to_audit(federation: Federation) -> None:
    before = federation.dump()["audits"]
    with pytest.raises(RefusedError) as refusal:
        federation.operator.command("audit")
    assert refusal.value.code == "not-allowed"
    assert federation.dump()["audits"] == before


@pytest.mark.parametrize("fill", [np.nan, np.inf, 1e300])
def test_garbage_does_not_poison_the_ledger(federation: Federation, fill: float) -> None:
    client, sample = federation.clients["clinic"], federation.draw(1)
    message = (
        struct.pack("<I", 1)
        + np.full(5 + 3, fill).tobytes()
        + struct.pack("<3q", 1, 0, 0)
        + bytes(4)
    )
    named = (commitments_of(SPEC, sample), [])
    before = federation.dump()
    with pytest.raises(RefusedError) as refusal:
        federation.service.request(
            client.request(message_kind="factor", message=message, named=named)
        )
    assert refusal.value.code == "malformed"
    assert federation.dump() == before
    client.send(federation.draw(1), kind="factor")
    check(federation)


def test_counts_and_commitments_are_checked_all_the_same(federation: Federation) -> None:
    clinic, lab = federation.clients.values()
    before = federation.dump()
    more = [Sample(one.features, (one.target + 1) % 3, one.salt) for one in clinic.retained]
    for data, code in (
        (clinic.request((), lab.retained[:1], "factor"), "not-live"),
        (clinic.request(clinic.retained[:1], kind="factor"), "already-live"),
        (
            clinic.request((), more, "factor", named=([], commitments_of(SPEC, clinic.retained))),
            "impossible",
        ),
        (clinic.request((), clinic.retained[:2], "factor", leave=True), "wrong-counts"),
    ):
        with pytest.raises(RefusedError) as refusal:
            federation.service.request(data)
        assert refusal.value.code == code, refusal.value
    assert federation.dump() == before
    check(federation)
