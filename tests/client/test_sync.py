"""The agent against the real service: everything arrives once, whatever is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import Spec, Statistics, solve
from expunge.client import Selection
from expunge.errors import (
    CarrierError,
    RefusedError,
    SpecMismatchError,
)
from expunge.evidence import published_head
from expunge.server.state import Settings
from expunge.wire import request
from support.agents import Home, add, of
from support.clients import features, found_in, ids
from support.federation import NOW, SPEC


class TestPushing:
    @pytest.mark.parametrize("message", ["rows", "gram"])
    def test_add_forget_correct(self, tmp_path: Path, message: str) -> None:
        home = Home(tmp_path, message=message)
        add(home.store)
        (receipt,) = home.agent.push()
        assert (receipt.sequence, receipt.logged.entry["added"]) == (1, 4)
        assert home.ledger == of() == home.store.statistics()
        home.store.forget(Selection(ids=["sample-0"]))
        home.store.correct("sample-1", label="eel")
        (receipt,) = home.agent.push()
        assert (receipt.logged.entry["added"], receipt.logged.entry["deleted"]) == (1, 2)
        assert (
            home.ledger
            == Statistics.of(SPEC, features(4)[1:], [2, 2, 0])
            == home.store.statistics()
        )
        assert home.agent.push() == []
        assert list(home.store.documents("receipt")) == [1, 2]
        assert home.store.checkpoint[0] == receipt.checkpoint.size
        home.close()

    @pytest.mark.parametrize("lost", [["before"], ["after"], ["before", "after", "after"]])
    def test_the_same_bytes_until_the_receipt_is_here(self, home: Home, lost: list[str]) -> None:
        add(home.store)
        home.way.lost = list(lost)
        assert len(home.agent.push()) == 1
        assert len(set(home.way.offered)) == 1
        assert len(home.way.offered) == len(lost) + 1
        assert home.way.pauses == [0.5, 1.0, 2.0][: len(lost)]
        assert home.ledger == of()

    def test_when_patience_ends_everything_can_be_tried_again(self, home: Home) -> None:
        add(home.store)
        home.way.lost = ["after"] * 4
        with pytest.raises(CarrierError):
            home.agent.push()
        assert home.store.status().composed == 1
        home.store.forget(Selection(ids=["sample-0"]))
        assert [receipt.logged.entry["deleted"] for receipt in home.agent.push()] == [0, 1]
        assert len(set(home.way.offered[:5])) == 1
        assert home.ledger == Statistics.of(SPEC, features(4)[1:], [1, 2, 0])

    @pytest.mark.parametrize("code", ["storage", "too-many"])
    def test_a_server_that_asks_for_patience_gets_it(self, home: Home, code: str) -> None:
        add(home.store)
        home.way.refuse = [RefusedError(code, "later"), RefusedError(code, "later")]
        assert len(home.agent.push()) == 1
        assert len(set(home.way.offered)) == 1

    def test_a_refusal_is_passed_on_and_everything_stays_pending(self, home: Home) -> None:
        add(home.store)
        home.way.refuse = [RefusedError("impossible", "no")]
        with pytest.raises(RefusedError, match="no"):
            home.agent.push()
        status = home.store.status()
        assert (status.adding, status.composed, status.refusal) == (4, None, "impossible: no")
        assert len(home.agent.push()) == 1

    @pytest.mark.parametrize(
        "code", ["sequence-gap", "sequence-reused", "bad-signature", "unknown-actor", "gone"]
    )
    def test_what_cannot_be_mended_stays_composed(self, home: Home, code: str) -> None:
        add(home.store)
        home.way.refuse = [RefusedError(code, "no")]
        with pytest.raises(RefusedError) as caught:
            home.agent.push()
        assert home.store.status().composed == 1
        notes = " ".join(getattr(caught.value, "__notes__", ()))
        assert ("it is an old copy" in notes) == (code == "sequence-reused")

    def test_a_large_load_travels_in_several_requests(self, tmp_path: Path) -> None:
        home = Home(tmp_path, settings=Settings(largest_request=20_000))
        add(home.store, 300)
        receipts = home.agent.push()
        assert sum(receipt.logged.entry["added"] for receipt in receipts) == 300
        assert len(receipts) > 2
        assert home.ledger == of(300)
        home.close()

    def test_what_is_too_large_is_halved(self, home: Home) -> None:
        add(home.store, 40)
        home.way.refuse = [RefusedError("too-large", "no"), RefusedError("too-large", "no")]
        assert [receipt.logged.entry["added"] for receipt in home.agent.push()] == [10, 10, 10, 10]

    def test_one_sample_that_is_too_large_is_refused(self, home: Home) -> None:
        add(home.store, 1)
        home.way.refuse = [RefusedError("too-large", "no")]
        with pytest.raises(RefusedError):
            home.agent.push()

    def test_a_server_that_always_refuses_is_not_asked_for_ever(self, home: Home) -> None:
        add(home.store)
        home.way.refuse = [RefusedError("unknown-order", "no")] * 50
        with pytest.raises(RefusedError):
            home.agent.push()
        assert len(home.way.refuse) > 40

    def test_leaving(self, home: Home) -> None:
        add(home.store)
        home.agent.push()
        home.store.leave()
        home.agent.push()
        assert home.federation.service.state.actor("ward-3").status == "gone"
        assert home.store.status().left
        assert home.agent.sync().status == "gone"
        assert home.ledger == Statistics.zero(SPEC)

    def test_factor_messages(self, tmp_path: Path) -> None:
        spec = Spec(dim=4, labels=("cat", "dog", "eel"), gamma=0.5, messages=("factor",))
        home = Home(tmp_path, spec)
        assert home.store.message == "factor"
        add(home.store, 700)
        composition = home.store.outbox.compose()
        assert composition is not None
        data = home.store.outbox.encode(composition)
        assert home.store.outbox.encode(composition) == data
        assert request.read(data).header.message == "factor"
        home.agent.push()
        home.store.forget(Selection(ids=ids(600)))
        home.agent.push()
        kept = features(700)[600:]
        expected = solve(
            Statistics.of(
                Spec(**{**vars_of(spec), "messages": ("gram",)}), kept, np.arange(600, 700) % 3
            )
        )
        head = home.federation.service.state.head
        assert head is not None
        np.testing.assert_allclose(head.weights, expected.weights, atol=1e-9)
        home.close()


def vars_of(spec: Spec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


class TestSyncing:
    def test_the_newest_head_is_fetched_once(self, home: Home) -> None:
        add(home.store)
        synced = home.agent.sync()
        assert (synced.status, len(synced.receipts), synced.new_head) == ("active", 1, True)
        expected = solve(of())
        assert synced.head == home.store.status().head == expected.digest
        data = home.store.head()
        assert data is not None
        assert published_head.read(data, home.federation.chain())[0].digest == expected.digest
        again = home.agent.sync()
        assert (again.new_head, again.head, again.receipts) == (False, expected.digest, ())

    @pytest.mark.parametrize("gone", [False, True])
    def test_no_file_tells_of_a_head_from_before_a_deletion(self, home: Home, gone: bool) -> None:
        """Whoever knows the samples that stayed could confirm a guess at the one that was
        deleted.
        """
        add(home.store, 8)
        home.agent.sync()
        before = home.store.status().head
        home.store.forget(Selection(everything=True) if gone else Selection(ids=["sample-3"]))
        home.agent.sync()
        if gone:
            home.store.drop_head()
        assert home.store.status().head != before
        assert found_in(home.store.path, [before.encode(), bytes.fromhex(before)]) == []

    def test_a_head_that_is_no_more_is_dropped(self, tmp_path: Path) -> None:
        home = Home(
            tmp_path, SPEC.with_gamma(2.0**-40)
        )  # which is too small for more than a few samples
        add(home.store, 1)
        assert home.agent.sync().head
        assert home.store.head() is not None
        add(home.store, 40, "more", 1)
        synced = home.agent.sync()
        assert (synced.head, synced.new_head, home.store.head(), home.store.status().head) == (
            "",
            False,
            None,
            "",
        )
        assert (home.agent.sync().head, home.ledger.count) == ("", 41)
        home.close()

    def test_amendments_are_taken_on(self, home: Home) -> None:
        add(home.store)
        home.agent.push()
        for labels in (["cat", "dog", "eel", "fox"], ["cat", "dog", "eel", "fox", "gnu"]):
            home.federation.operator.command("amend", labels=labels)
        home.store.forget(Selection(ids=["sample-0"]))
        assert len(home.agent.push()) == 1, "a request under the old labels is mended"
        home.federation.operator.command("amend", gamma=(2.0).hex())
        synced = home.agent.sync()
        assert synced.amended
        grown = SPEC.with_labels("fox", "gnu").with_gamma(2.0)
        assert home.store.spec == grown
        assert len(home.store.documents("amendment")) == 3
        home.store.add(["g"], features(1, 5), ["gnu"], now=NOW)
        home.agent.sync()
        rows = np.concatenate([features(4)[1:], features(1, 5)])
        assert home.ledger == Statistics.of(grown, rows, [1, 2, 0, 4])

    def test_a_composed_request_under_old_labels_is_made_again(self, home: Home) -> None:
        add(home.store)
        home.store.outbox.compose()
        home.federation.operator.command("amend", labels=["cat", "dog", "eel", "fox"])
        assert len(home.agent.sync().receipts) == 1
        assert home.store.sequence == 1
        assert home.ledger.count == 4

    def test_an_amendment_between_question_and_head(self, home: Home) -> None:
        add(home.store)
        amend = [(2.0).hex()]

        def amended(data: Any) -> Any:
            if amend:
                home.federation.operator.command("amend", gamma=amend.pop())
            return data

        home.way.change["request"] = amended
        synced = home.agent.sync()
        assert synced.head == solve(of(spec=SPEC.with_gamma(2.0))).digest
        assert home.store.spec == SPEC.with_gamma(2.0)

    def test_there_and_back_again(self, home: Home) -> None:
        for gamma in (2.0, 0.5, 2.0):
            home.federation.operator.command("amend", gamma=gamma.hex())
        home.agent.sync()
        assert home.store.spec == SPEC.with_gamma(2.0)

    @pytest.mark.parametrize(("allowed", "expected"), [(["gram"], "gram"), (["rows"], None)])
    def test_messages_that_are_no_longer_allowed(
        self, tmp_path: Path, allowed: list[str], expected: str | None
    ) -> None:
        home = Home(tmp_path, message="rows" if expected else "gram")
        add(home.store)
        home.federation.operator.command("amend", messages=allowed)
        if expected:
            home.agent.sync()
            assert (home.store.message, home.ledger) == (expected, of(spec=home.store.spec))
        else:
            with pytest.raises(SpecMismatchError, match="rows show every sample"):
                home.agent.sync()
            home.store.choose("rows")
            home.agent.sync()
            assert home.ledger.count == 4
        home.close()

    def test_key_rotations_are_followed(self, home: Home) -> None:
        add(home.store)
        home.agent.push()
        for number in (1, 2):
            home.federation.operator.command("rotate-key")
            add(home.store, 1, f"more{number}", number)
            assert len(home.agent.push()) == 1
            assert len(home.store.documents("rotation")) == number
        assert home.agent.sync().new_head

    def test_a_receipt_from_before_a_rotation_is_still_good(self, home: Home) -> None:
        add(home.store)
        home.way.lost = ["after"] * 4
        with pytest.raises(CarrierError):
            home.agent.push()
        home.federation.operator.command("rotate-key")
        home.agent.sync()
        assert home.store.sequence == 1
