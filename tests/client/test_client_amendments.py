"""Amendments that a server makes up, shows to one client, or makes in the middle of a round: the
client judges them itself. And what else may have changed since a round was joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from expunge import Aggregation, Spec, kinds
from expunge.client.enrolment import rejoin
from expunge.crypto import Envelope
from expunge.errors import EvidenceError, SpecMismatchError
from expunge.secagg import Participant
from expunge.server import commands
from expunge.wire.token import Token
from support.lying_rounds import retold
from support.masked_round import RULES, SPEC, Circle, drawn

SCHEDULED = replace(RULES, every=3600, window=300)


@pytest.fixture
def circle() -> Iterator[Circle]:
    with drawn() as one:
        yield one


# -- amendments that no operator may make ----------------------------------------------------------


def amended_at_will(circle: Circle, **arguments: Any) -> None:
    """What the server's real code would refuse, with its checks taken away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "AMENDABLE", tuple(circle.spec.to_dict() | arguments))
        patch.setattr(Spec, "require_amends", lambda *_: None)
        circle.federation.operator.command("amend", **arguments)


WEAKENED: dict[str, Aggregation] = {
    "fewest": replace(RULES, fewest=2),
    "colluding": replace(RULES, colluding=0),
    "arbiter": replace(RULES, arbiter="ab" * 64),
    "schedule": SCHEDULED,
}


@pytest.mark.parametrize("rules", WEAKENED.values(), ids=WEAKENED)
def test_the_rules_of_rounds_are_no_operators_to_amend(circle: Circle, rules: Aggregation) -> None:
    circle.everybody_adds()
    amended_at_will(circle, aggregation=rules.to_dict())
    for name, store in circle.stores.items():
        with pytest.raises(
            EvidenceError,
            match="what no operator may amend; this client's spec stays: an amendment can change "
            "gamma, labels, messages, publication_bits, not aggregation",
        ):
            circle.sync(name)
        assert store.spec == SPEC
        assert store.participation.read() is None


def test_how_many_samples_a_sum_has_is_no_operators_to_amend() -> None:
    with drawn(spec=replace(SPEC, fewest_samples=64)) as circle:
        circle.everybody_adds()
        amended_at_will(circle, fewest_samples=0)
        with pytest.raises(EvidenceError, match="not fewest_samples"):
            circle.sync("c0")
        assert circle.stores["c0"].spec.fewest_samples == 64
        assert circle.stores["c0"].recall("masked") is None


def test_a_rebuilt_server_has_the_rules_that_there_were(circle: Circle) -> None:
    """Whoever comes back to it by a token takes on amendments, and nothing else."""
    circle.everybody_adds()
    circle.go()
    weaker = replace(SPEC, aggregation=WEAKENED["colluding"])
    assert weaker.data_digest == SPEC.data_digest
    federation, store = circle.federation, circle.stores["c0"]
    key = federation.first_key.public
    token = Token(federation.id, "c0", "client", "0" * 64, key, ("https://x",))
    circle.way.change["federation"] = retold(
        circle, "federation", lambda content: content.update(spec=weaker.to_dict())
    )
    with pytest.raises(SpecMismatchError, match=r"another spec than this client: .* aggregation"):
        rejoin(store, token, circle.way, "https://x")
    assert store.spec == SPEC


def test_an_honest_amendment_is_taken_on_before_the_next_round(circle: Circle) -> None:
    circle.everybody_adds()
    circle.pass_round("c0", "c1")
    circle.federation.operator.command("amend", gamma=(4.0).hex(), publication_bits=30)
    circle.go()
    assert {store.spec for store in circle.stores.values()} == {
        SPEC.with_gamma(4.0).with_publication_bits(30)
    }
    circle.check_whole()


# -- amendments that others are not shown ----------------------------------------------------------


def shown_alone(circle: Circle, spec: Spec) -> None:
    """From now on the server shows an amendment, signed by its key, that its log does not."""
    state = circle.service.state
    command = Envelope.signed("command", {"action": "amend"}, circle.federation.operator.key)
    content = {
        "command": command.to_json(),
        "federation": state.federation,
        "index": state.log.size,
        "spec": spec.to_dict(),
        "spec_before": SPEC.digest,
        "time": "2026-11-15T09:30:00Z",
    }
    amendment = Envelope.signed("amendment", content, state.folder.key).to_json()

    def show(answer: dict[str, Any]) -> None:
        answer.update(spec=spec.to_dict(), amendments=[amendment])

    circle.way.change["sync"] = retold(circle, "answer", show)
    circle.way.change["head"] = lambda _: None  # no head is newer


def test_a_client_that_is_shown_another_spec_than_the_log_joins_nothing(circle: Circle) -> None:
    """With rules or labels of its own, its part of a sum would not be like those of others."""
    circle.everybody_adds()
    circle.pass_round("c1", "c2", "c3")
    shown_alone(circle, SPEC.with_gamma(4.0))
    circle.sync("c0")
    assert circle.stores["c0"].spec.gamma == 4.0
    circle.wait(10.0)
    assert "the log shows another spec than the one that this client has" in (
        circle.sync("c0").waiting
    )
    assert circle.stores["c0"].recall("masked") is None
    circle.way.change.clear()
    with pytest.raises(EvidenceError, match="not this client's spec with signed amendments"):
        circle.sync("c0")


# -- a round that has changed since it was joined --------------------------------------------------


@pytest.mark.parametrize("phase", ["masking", "agreeing"])
def test_a_round_under_earlier_labels_is_neither_masked_nor_agreed_to(
    circle: Circle, phase: kinds.Phase
) -> None:
    """One under the new ones could be subtracted. The server says that labels were appended, and
    goes on with the round all the same.
    """
    circle.everybody_adds()
    circle.until(phase)
    shown_alone(circle, SPEC.with_labels("perhaps"))
    said = [one.waiting for one in circle.pass_round().values()]
    assert any("the labels were amended since this client joined" in one for one in said), said
    assert not circle.entries("aggregated")


def test_nobody_goes_on_with_an_audit_under_another_number_than_it_joined_with(
    circle: Circle,
) -> None:
    """Another agent on the store, which has not seen that this one joined, settles a request."""
    circle.everybody_adds()
    circle.go()
    circle.federation.operator.command("audit")
    circle.until("masking")
    store = circle.stores["c0"]
    number = store.sequence + 1
    store.remember({"sequence": str(number)})
    circle.way.change["sync"] = retold(
        circle, "answer", lambda content: content.update(sequence=number)
    )
    assert "has changed something since it joined an audit" in circle.sync("c0").waiting


def test_a_receipt_ends_no_round_that_another_agent_has_joined_meanwhile(circle: Circle) -> None:
    """Else what binds this client's number would be forgotten in the middle of that round."""
    circle.everybody_adds()
    circle.until("revealing")
    for name in circle.names[1:]:
        circle.sync(name)
    store = circle.stores["c0"]
    data = store.participation.read()
    assert data is not None
    here = Participant.from_bytes(data, store.key, RULES)
    other = Participant.join(
        replace(here.opening, round="ab" * 16), RULES, name="c0", sequence=1, key=store.key
    )

    def meanwhile(name: str) -> str:
        if name == "aggregate":
            store.participation.write(other.to_bytes())
        return ""

    circle.way.lose = meanwhile
    bound = store.recall("rosters")
    assert "another agent on this store is in another round" in circle.sync("c0").waiting
    circle.way.lose = lambda _: ""
    assert bound
    assert store.recall("rosters") == bound
    assert not store.documents("receipt")
    store.participation.write(here.to_bytes())  # only a server that lies led it elsewhere
    circle.go()
    circle.check_whole()
