"""The law of the service: after any stream of requests the ledger is the sum of its shares, and the
head that of retraining.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from expunge import Grid, Spec, solve
from expunge.crypto import Envelope
from expunge.errors import RefusedError
from expunge.evidence import Checkpoint, published_head
from expunge.evidence.merkle import verify_consistency
from support.federation import Federation, scratch
from support.samples import SPEC, Sample, statistics_of

KINDS = st.sampled_from(["rows", "gram"])
NAMES = ("clinic", "hospital", "lab")
REGRESSION = Spec(dim=3, outputs=2, gamma=0.25, intercept=False)


class Streams(RuleBasedStateMachine):
    """Adds and deletes by three clients, as rows and as Grams, with folds and restarts between
    them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = scratch()
        self.seen: Checkpoint | None = None

    @initialize(
        solver=st.sampled_from(["cholesky", "woodbury"]), spec=st.sampled_from([SPEC, REGRESSION])
    )
    def found(self, solver: str, spec: Spec) -> None:
        self.federation = Federation(self.folder / "server", spec, solver=solver)
        for name in NAMES:
            self.federation.enrol(name)

    @rule(name=st.sampled_from(NAMES), kind=KINDS, count=st.integers(1, 6))
    def add(self, name: str, kind: str, count: int) -> None:
        self.federation.clients[name].send(self.federation.draw(count), kind=kind)

    @rule(name=st.sampled_from(NAMES), kind=KINDS, data=st.data(), count=st.integers(0, 2))
    def delete(self, name: str, kind: str, data: st.DataObject, count: int) -> None:
        client = self.federation.clients[name]
        if client.retained:
            gone = data.draw(
                st.lists(
                    st.integers(0, len(client.retained) - 1), min_size=1, max_size=8, unique=True
                )
            )
            client.send(
                self.federation.draw(count), [client.retained[place] for place in gone], kind
            )

    @rule(name=st.sampled_from(NAMES), kind=KINDS)
    def delete_everything(self, name: str, kind: str) -> None:
        client = self.federation.clients[name]
        if client.retained:
            client.send((), list(client.retained), kind)

    @rule(name=st.sampled_from(NAMES))
    def change_nothing(self, name: str) -> None:
        self.federation.clients[name].send()

    @rule(name=st.sampled_from(NAMES), kind=KINDS)
    def refused(self, name: str, kind: str) -> None:
        client = self.federation.clients[name]
        with pytest.raises(RefusedError) as refusal:
            client.send(self.federation.draw(1), self.federation.draw(1), kind)
        assert refusal.value.code == "not-live"

    @rule()
    def fold(self) -> None:
        self.federation.fold()
        assert self.federation.service.status()["journal"] == 0

    @rule()
    def reopen(self) -> None:
        self.federation.reopen()

    @precondition(lambda self: hasattr(self, "federation"))
    @invariant()
    def law(self) -> None:
        self.federation.check()
        head, certificate = published_head.read(
            self.federation.service.head() or b"", self.federation.chain()
        )
        assert head == self.federation.service.state.head
        assert certificate.count == len(self.federation.retained())
        self.log_goes_on(certificate.checkpoint)

    def log_goes_on(self, now: Checkpoint) -> None:
        if self.seen is not None:
            proof = self.federation.service.consistency(self.seen.size, now.size)
            verify_consistency(self.seen.size, self.seen.root, now.size, now.root, proof)
        self.seen = now

    def teardown(self) -> None:
        if hasattr(self, "federation"):
            self.federation.close()
        shutil.rmtree(self.folder)


Streams.TestCase.settings = settings(max_examples=25, stateful_step_count=18)
TestStreams = Streams.TestCase


@pytest.mark.parametrize("solver", ["cholesky", "woodbury"])
def test_both_variants_give_the_same_bits(tmp_path: Path, solver: str) -> None:
    with Federation(tmp_path / "server", solver=solver, seed=5) as federation:
        client = federation.enrol("clinic")
        client.send(federation.draw(9))
        client.send(federation.draw(2), client.retained[:3], "gram")
        federation.check()
        assert federation.service.status()["solver"] == solver


def test_a_message_too_large_for_the_journal_has_a_file_of_its_own(tmp_path: Path) -> None:
    with Federation(tmp_path / "server") as federation:
        client = federation.enrol("clinic")
        client.send(federation.draw(4200))
        assert len(list((federation.path / "sealed").iterdir())) == 1
        client.send((), client.retained[:4000])
        federation.reopen()
        federation.check()
        federation.fold()
        federation.check()
        assert (
            len(list((federation.path / "sealed").iterdir())) == 2
        )  # the ledger, and the one client's share


def test_soft_targets_and_hard_ones_mix(tmp_path: Path) -> None:
    with Federation(tmp_path / "server") as federation:
        client = federation.enrol("clinic")
        soft = [Sample(one.features, np.array([0.25, 0.5, 0.25])) for one in federation.draw(3)]
        one_hot = [Sample(one.features, np.array([0.0, 1.0, 0.0])) for one in federation.draw(3)]
        client.send([*soft, *federation.draw(3), *one_hot])
        hard_again = [Sample(one.features, 1, one.salt) for one in one_hot]
        named = client.request((), hard_again)
        client.settled(federation.service.request(named), (), one_hot)
        client.send((), soft[:2], "gram")
        federation.check()


def test_a_ledger_that_has_no_head_takes_requests_and_says_why_there_is_none(
    tmp_path: Path,
) -> None:
    """The conditioning rule refuses the head, never the deletion that would mend it."""
    spec = Spec(dim=3, labels=("no", "yes"), gamma=2.0**-60, grid=Grid(2, 20))
    with Federation(tmp_path / "server", spec) as federation:
        client = federation.enrol("clinic")
        receipt = client.send(
            [Sample(one.features * 1000, one.target) for one in federation.draw(5)]
        )
        assert receipt.logged.entry["head"] == ""
        with pytest.raises(RefusedError) as refusal:
            federation.service.head()
        assert refusal.value.code == "unsolvable"
        assert "gamma" in refusal.value.reason
        assert federation.service.head_digest() == ""
        assert client.sync()["head"] == ""
        federation.fold()
        federation.reopen()
        assert federation.service.state.ledger.solver.statistics == federation.statistics()
        client.send((), list(client.retained))
        federation.check()


def test_the_head_is_fetched_once(tmp_path: Path) -> None:
    with Federation(tmp_path / "server") as federation:
        client = federation.enrol("clinic")
        client.send(federation.draw(3))
        service = federation.service
        data = service.head()
        assert data is not None
        head, certificate = published_head.read(data, federation.chain())
        assert service.head(head.digest) is None
        assert service.head() == data
        assert head == solve(statistics_of(SPEC, client.retained))
        assert certificate.head == service.head_digest() == head.digest == client.sync()["head"]
        client.send((), client.retained[:1])
        assert service.head(head.digest) not in (None, data)


def test_what_the_service_says_of_itself_is_signed(tmp_path: Path) -> None:
    with Federation(tmp_path / "server") as federation:
        client = federation.enrol("clinic")
        client.send(federation.draw(2))
        public, service = federation.server_key.public, federation.service
        told = Envelope.from_bytes(service.federation(), "federation").verify(public)
        assert Spec.from_dict(told["spec"]) == SPEC
        assert (told["federation"], told["server"]) == (federation.id, public.text)
        checkpoint = Checkpoint.from_json(
            Envelope.from_bytes(service.checkpoint(), "checkpoint").verify(public)
        )
        assert checkpoint == Checkpoint.from_json(told["checkpoint"])
        assert checkpoint.size == len(federation.entries())
        heard = client.sync(2)
        assert [bytes.fromhex(one) for one in heard["consistency"]] == service.consistency(
            2, checkpoint.size
        )
        assert heard["status"] == "active"
