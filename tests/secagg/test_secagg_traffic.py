"""What a round costs is known before there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge import Spec
from expunge.crypto import canonical
from expunge.errors import SpecError
from expunge.evidence.log import read_entry
from expunge.secagg import length, read_preamble
from expunge.secagg.traffic import RoundSizes
from expunge.wire import payloads
from support.masked_round import SPEC, drawn


@pytest.mark.parametrize(
    "spec",
    [SPEC, replace(SPEC, dim=17, labels=("a", "b", "c"))],
    ids=["narrow", "wide"],
)
@pytest.mark.parametrize("clients", [3, 5, 8])
def test_a_client_sends_exactly_the_bytes_that_the_plan_predicts(clients: int, spec: Spec) -> None:
    with drawn(clients, spec=spec) as circle:
        circle.everybody_adds()
        circle.go()
        predicted = RoundSizes(circle.spec, circle.names, sequence=1)
        sent: dict[str, dict[str, int]] = {name: {} for name in circle.names}
        for who, data in circle.way.said:
            if who == "told":
                continue
            if data.startswith(b"{"):
                _, content = payloads.open_unverified("turn", data)
                if not content["aggregation"]:
                    sent[content["actor"]]["turn"] = len(data)
            else:
                claims = read_preamble(data)
                sent[claims.client][claims.kind] = len(data)
        last = circle.entries("aggregated")[-1]
        assert [member["client"] for member in last["clients"]] == circle.names
        for name in circle.names:
            sizes = predicted.sent(name)
            assert {kind: sizes[kind] for kind in sent[name]} == sent[name]
            assert set(sizes) == set(sent[name]) | {"reveal"}  # a few shares were enough
        assert predicted.of("c0").sent == sum(predicted.sent("c0").values())


@pytest.mark.parametrize("clients", [3, 8])
def test_what_a_client_receives_and_what_is_logged_is_about_what_is_predicted(
    clients: int,
) -> None:
    with drawn(clients) as circle:
        circle.everybody_adds()
        circle.go()
        traffic = RoundSizes(circle.spec, circle.names, sequence=1).of("c0")
        entry = circle.entries("aggregated")[-1]
        logged = len(canonical.encode(entry))
        assert abs(traffic.logged - logged) <= 8  # digits of numbers
        received = 0
        for who, data in circle.way.said:
            if who == "told":
                _, content = payloads.open_unverified("standing", data)
                needed = content["content"] or content["opening"] or content["receipt"]
                received += len(data) if content["actor"] == "c0" and needed else 0
        assert 0.8 * received < traffic.received < 1.2 * received


def test_the_vector_is_most_of_it_and_shares_grow_with_the_neighbours() -> None:
    wide = replace(SPEC, dim=768)
    few, many = (
        RoundSizes(wide, [f"client-{number:03}" for number in range(clients)])
        for clients in (3, 1000)
    )
    assert few.sent("client-000")["masked"] - 16 * length(wide) < 1000
    more = many.of("client-000").sent - few.of("client-000").sent
    assert more == (410 - 2) * (146 + 33)  # neighbours; a parcel and a share for each
    assert read_entry(many._entry())["kind"] == "aggregated"


def test_a_spec_without_rules_has_no_rounds() -> None:
    with pytest.raises(SpecError, match="has no rounds"):
        RoundSizes(Spec(dim=2, outputs=1), ["a", "b"])
