"""The contract of carriers: whatever happens on the way, each change is counted once, and the head
is that of retraining.

A carrier is put through it by a class of its own, in a file of its own, that says which lane it
has:

    class TestFlower(Contract):
        lane_type = FlowerLane

The contract knows nothing of carriers: it speaks to the lane by its verbs (`lanes.Lane`). After
every story comes the retrain (`Story.check`): the statistics of all that the clients were told to
keep, computed afresh from the features, are the ledger's, bit for bit; solving them gives the head;
and the audit log has each request of each client once, in order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from expunge import Spec, solve
from expunge.crypto import Envelope
from expunge.errors import CarrierError, RefusedError
from expunge.evidence import Checkpoint, published_head, render_bundle, verify
from expunge.evidence.merkle import leaf_hash, root_of, verify_consistency, verify_inclusion
from expunge.server.state import Settings
from expunge.wire import payloads
from support import seeds
from support.carriers import ATTEMPTS, FAULTS, CallingLane, Fault, Lane
from support.federation import make_key, scratch
from support.samples import SPEC, statistics_of
from support.stories import Story, begun, by_hand, refused

SOLVERS = ("woodbury", "cholesky")
FACTOR = replace(SPEC, messages=("factor", "gram", "rows"))
LARGE = Spec(dim=800, labels=("cat", "dog"))  # 801 wide: the Gram is 5 MB
LOSSES = tuple(fault for fault in FAULTS if fault.what in ("lost", "truncated"))
SMALL = Settings(largest_request=4000)


class Contract:
    """Laws of every carrier."""

    lane_type: ClassVar[type[Lane]]
    steps: ClassVar[int] = 15  # of the long story

    @pytest.fixture
    def found(self, tmp_path: Path) -> Iterator[Callable[..., Story]]:
        """Found a federation: a function, so that each test says of which kind."""
        lanes: list[Lane] = []

        def make(spec: Spec = SPEC, **options: Any) -> Story:
            lanes.append(self.lane_type(tmp_path / f"lane-{len(lanes)}", spec, **options))
            return Story(lanes[-1])

        yield make
        for lane in lanes:
            lane.close()

    @pytest.fixture(scope="class")
    @classmethod
    def beginning(cls) -> Iterator[Story]:
        """Two clients with samples, which this carrier has brought; see `begun`. It is made once,
        and closed.
        """
        place = scratch()
        with seeds.apart(cls.lane_type.__name__):
            story = begun(Story(cls.lane_type(place)))
            story.lane.close()
        yield story
        shutil.rmtree(place)

    @pytest.fixture
    def story(self, found: Callable[..., Story], beginning: Story) -> Story:
        """A twin of it, for one test."""
        return beginning.twin(found(origin=beginning.lane).lane)

    # -- all kinds, both variants ------------------------------------------------------------------

    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize("message", ["rows", "gram"])
    def test_adds_deletes_and_corrections(
        self, found: Callable[..., Story], solver: str, message: str
    ) -> None:
        story = found(solver=solver)
        story.enrol("north", message)
        story.add("north", 5)
        synced = story.brought("north")
        assert [receipt.logged.entry["message"] for receipt in synced.receipts] == [message]
        story.check()
        story.correct("north")
        story.forget("north", 2)
        assert story.brought("north").head == solve(story.retrained()).digest
        story.check()
        story.forget("north", 3)
        story.brought("north")
        assert story.lane.ledger.count == 0
        story.check()
        assert story.lane.sync("north").receipts == ()

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_a_federation_in_float64(self, found: Callable[..., Story], solver: str) -> None:
        """Factor messages: close to retraining, counted once, and never called exact."""
        story = found(FACTOR, solver=solver)
        for name, message in (("north", "factor"), ("south", "rows")):
            story.enrol(name, message)
            story.add(name, 7)
            story.brought(name)
        story.forget("north", 2)
        story.add("north", 1)
        story.lane.plan(None, Fault("repeated"))
        story.brought("north")
        assert story.lane.met
        story.check_log()
        federation = story.lane.federation
        head, certificate = published_head.read(
            federation.service.head() or b"", federation.chain()
        )
        retrained = solve(story.retrained().under(federation.spec))
        assert np.allclose(head.weights, retrained.weights, rtol=0, atol=1e-9)
        assert (certificate.exact, certificate.count) == (False, 13)

    def test_a_large_message(self, found: Callable[..., Story]) -> None:
        story = found(LARGE, solver="cholesky")
        story.enrol("north", "gram")
        story.add("north", 3)
        story.lane.plan(None, Fault("lost", back=True))
        (receipt,) = story.brought("north").receipts
        assert story.lane.met
        assert (receipt.logged.entry["message"], receipt.logged.entry["added"]) == ("gram", 3)
        story.check()

    # -- whatever happens --------------------------------------------------------------------------

    @pytest.mark.parametrize("fault", FAULTS, ids=str)
    def test_a_fault_at_any_exchange(self, story: Story, fault: Fault) -> None:
        """One fault in each sync, at its first exchange, at its second, and so on until a sync has
        no more of them.

        Only a client that dies needs another sync (`Story.brought`).
        """
        lane = story.lane
        if fault not in lane.faults:
            pytest.skip(f"{fault} cannot happen on this lane")
        for position in range(100):
            name = ("north", "south")[position % 2]
            story.add(name, 2)
            story.forget(name)
            lane.plan(*[None] * position, fault)
            story.brought(name)
            story.check()
            if not lane.met:
                break
        assert position >= 2, "a sync has at least one exchange that asks, and one that brings"
        story.add("north", 1)
        story.brought("north")
        late = lane.deliver_held()
        assert (late > 0) == (fault.what == "late")
        story.check()

    def test_a_long_story(self, story: Story) -> None:
        """Changes, restarts and several faults in each sync, all drawn from one seed."""
        lane, chance = story.lane, seeds.chance()
        for _ in range(self.steps):
            name = chance.choice(("north", "south"))
            for _ in range(chance.randrange(1, 4)):
                story.something(name, chance)
            lane.plan(*(chance.choice((None, None, None, *lane.faults)) for _ in range(5)))
            story.brought(name)
            if chance.random() < 0.2:
                lane.deliver_held()
            lane.plan()
        for name in story.kept:
            story.brought(name)
        lane.deliver_held()
        story.check()

    @pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
    def test_whatever_is_cut_short_is_offered_again(self, story: Story, back: bool) -> None:
        """Not once only: at every exchange of a sync, as often as the client tries but for once."""
        for position in range(100):
            story.add("north", 1)
            story.lane.plan(*[None] * position, *[Fault("truncated", back)] * (ATTEMPTS - 1))
            assert len(story.lane.sync("north").receipts) == 1
            story.check()
            if not story.lane.met:
                break
            assert len(story.lane.met) == ATTEMPTS - 1
        assert position >= 2, "a sync has at least one exchange that asks, and one that brings"

    def test_a_sync_that_fails_at_every_attempt_says_that_it_may_be_repeated(
        self, story: Story
    ) -> None:
        story.add("north", 1)
        story.lane.plan(*[Fault("truncated")] * ATTEMPTS)
        with pytest.raises(CarrierError):
            story.lane.sync("north")
        assert len(story.lane.sync("north").receipts) == 1
        story.check()

    def test_restarts_between_two_syncs(self, story: Story) -> None:
        lane = story.lane
        for restart in (lane.restart_server, lambda: lane.restart_client("north")):
            story.add("north", 2)
            restart()
            story.forget("north")
            restart()
            (receipt,) = story.brought("north").receipts
            assert (receipt.logged.entry["added"], receipt.logged.entry["deleted"]) == (2, 1)
            restart()
            story.check()
            assert story.brought("north").receipts == ()

    def test_the_same_bytes_are_answered_by_the_same_receipt(self, story: Story) -> None:
        """Also after a restart, until the next request shows that the receipt has arrived: what was
        applied once is never applied again.
        """
        lane, client = story.lane, by_hand(story, "north")
        samples = lane.federation.draw(3)
        data = client.request(samples[:2], kind="gram")
        receipt = lane.offer(data)
        assert lane.offer(data) == receipt
        client.settled(receipt, samples[:2])
        lane.restart_server()
        assert lane.offer(data) == receipt
        client.settled(lane.offer(client.request(samples[2:])), samples[2:])
        with pytest.raises(RefusedError) as refusal:
            lane.offer(data)
        assert refusal.value.code == "sequence-reused"
        assert lane.ledger == story.retrained() + statistics_of(story.spec, samples)

    # -- refusals ----------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("code", "changes"),
        [
            ("wrong-spec", {"data_digest": replace(SPEC, dim=5).data_digest}),
            ("wrong-federation", {"federation": "0" * 32}),
            ("unknown-actor", {"client": "stranger"}),
            ("bad-signature", {"key": make_key()}),
            ("sequence-gap", {"sequence": 3}),
            ("sequence-reused", {"sequence": 1}),
        ],
    )
    def test_a_request_that_cannot_be_taken(
        self, story: Story, code: str, changes: dict[str, Any]
    ) -> None:
        client = by_hand(story, "north")
        refused(story, client.request(story.lane.federation.draw(1), **changes), code)

    def test_what_is_not_there_cannot_be_deleted(self, story: Story) -> None:
        client = by_hand(story, "north")
        refused(story, client.request((), story.lane.federation.draw(1)), "not-live")

    def test_nonsense_is_refused(self, story: Story) -> None:
        data = by_hand(story, "north").request(story.lane.federation.draw(1))
        for wrong in (b"nonsense", data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1])):
            refused(story, wrong, "malformed")

    def test_what_is_too_large_is_refused(self, found: Callable[..., Story]) -> None:
        story = begun(found(settings=SMALL))
        refused(story, by_hand(story, "north").request(story.lane.federation.draw(60)), "too-large")

    def test_what_is_too_large_for_one_request_comes_in_several(
        self, found: Callable[..., Story]
    ) -> None:
        story = begun(found(settings=SMALL))
        story.add("north", 90)
        assert len(story.brought("north").receipts) > 1
        story.check()

    def test_a_client_that_was_forgotten_learns_of_it(self, story: Story) -> None:
        story.lane.federation.operator.command("forget-client", client="south")
        story.kept["south"].clear()
        story.add("south", 1)
        assert story.lane.sync("south").status == "gone"
        del story.kept["south"]
        story.brought("north")
        story.check()

    # -- orders and audits -------------------------------------------------------------------------

    def test_an_order_goes_through(self, story: Story) -> None:
        lane = story.lane
        for name in story.kept:
            story.add(name, 2, subject="ann")
            story.brought(name)
        order = lane.officer_command("order", subject="ann", subjects={}, days=30)["order"]
        lane.plan(Fault("lost", back=True), Fault("lost", back=True))
        found = [dict(story.brought(name).orders) for name in story.kept]
        assert [one[order].count for one in found] == [2, 2]
        story.forgotten("ann")
        story.check()
        shown = lane.officer_ask("show-order", order=order)
        assert (shown["state"], [answer["found"] for answer in shown["answers"]]) == (
            "complete",
            [2, 2],
        )
        bundle = render_bundle(
            Envelope.from_json(lane.officer_ask("bundle", order=order), "bundle")
        )
        assert verify(bundle, lane.federation.first_key.public).proved

    def test_an_audit_goes_through(self, story: Story) -> None:
        lane = story.lane
        audit = lane.officer_command("audit")["audit"]
        story.add("north", 3)
        lane.plan(None, None, Fault("repeated"), None, Fault("repeated"))
        assert [story.brought(name).audits for name in story.kept] == [(audit,), (audit,)]
        lane.federation.finish_audits()
        shown = lane.officer_ask("show-audit", audit=audit)
        assert (shown["result"], shown["equal"], shown["different"]) == (
            "equal",
            ["north", "south"],
            [],
        )
        story.check()

    def test_an_amendment_goes_through(self, story: Story) -> None:
        federation = story.lane.federation
        federation.operator.command(
            "amend", gamma=(0.25).hex(), labels=["cat", "dog", "eel", "fox"]
        )
        federation.spec = federation.spec.with_gamma(0.25).with_labels("fox")
        assert all(story.brought(name).amended for name in story.kept)
        story.add("south", 6)
        story.brought("south")
        story.check()


class CallingContract(Contract):
    """Laws of carriers that clients and officers call, besides."""

    lane_type: ClassVar[type[CallingLane]]

    @pytest.fixture
    def called(self, story: Story) -> CallingLane:
        assert isinstance(story.lane, CallingLane)
        return story.lane

    def test_everything_that_can_be_asked_is_what_the_service_says(
        self, called: CallingLane
    ) -> None:
        carrier, federation, service = called.carrier, called.federation, called.federation.service
        public = federation.server_key.public
        assert (
            payloads.open_verified("federation", carrier.federation(), public)["federation"]
            == federation.id
        )
        checkpoint = Checkpoint.from_json(
            Envelope.from_bytes(carrier.checkpoint(), "checkpoint").verify(public)
        )
        entries = carrier.entries(0, 1000)
        assert entries == service.entries(0, checkpoint.size)
        leaves = [leaf_hash(entry) for entry in entries]
        assert len(leaves) == checkpoint.size > 4
        for index, leaf in enumerate(leaves):
            verify_inclusion(
                leaf,
                index,
                checkpoint.size,
                carrier.inclusion(index, checkpoint.size),
                checkpoint.root,
            )
        for size in range(1, checkpoint.size + 1):
            proof = carrier.consistency(size, checkpoint.size)
            verify_consistency(
                size, root_of(leaves[:size]), checkpoint.size, checkpoint.root, proof
            )
        head, certificate = published_head.read(carrier.head() or b"", federation.chain())
        assert (head.digest, certificate.count) == (service.head_digest(), 8)
        assert carrier.head(head.digest) is None
        assert carrier.head("0" * 64) == carrier.head()
        assert (
            called.officer_ask("status")["log"] == checkpoint.size + 2
        )  # the officer's own token and enrolment
        with pytest.raises(RefusedError) as refusal:
            carrier.inclusion(10**6, 10**7)
        assert refusal.value.code == "not-found"

    def test_nonsense_is_refused_wherever_it_is_said(self, called: CallingLane) -> None:
        before, carrier = called.federation.dump(), called.carrier
        for say in (carrier.enrol, carrier.request, carrier.sync, carrier.command):
            with pytest.raises(RefusedError) as refusal:
                say(b"nonsense")
            assert refusal.value.code == "malformed"
        assert called.federation.dump() == before

    @pytest.mark.parametrize("fault", LOSSES, ids=str)
    @pytest.mark.parametrize("position", range(3))
    def test_an_enrolment_that_is_lost_is_finished_by_the_same_call(
        self, called: CallingLane, position: int, fault: Fault
    ) -> None:
        token = called.token("west")
        called.plan(*[None] * position, fault)
        with pytest.raises(CarrierError):
            called.enrolled(called.path / "west", token, "")
        called.stores["west"] = called.enrolled(called.path / "west", token, "")
        assert called.sync("west").status == "active"
        with pytest.raises(RefusedError) as refusal:
            called.enrolled(called.path / "impostor", token, "")
        assert refusal.value.code in ("bad-token", "name-taken")

    def test_a_command_that_is_lost_is_carried_out_once(self, called: CallingLane) -> None:
        assert called.officer_ask("status")
        for fault in (*LOSSES, Fault("server restarts", back=True)):
            before = len(called.officer_ask("orders"))
            called.plan(fault)
            with pytest.raises(CarrierError):
                called.officer_command("order", subject="ann", subjects={}, days=30)
            called.officer_command("order", subject="ann", subjects={}, days=30)
            assert len(called.officer_ask("orders")) == before + 1
