"""The rules of secure aggregation: a value that is whole or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.crypto import SigningKey
from expunge.errors import SpecError
from expunge.ridge.spec import Aggregation, Spec
from expunge.secagg.plan import share_of
from expunge.server.backup import found


def test_the_form_for_json_is_the_rules() -> None:
    rules = Aggregation(fewest=5, dropouts=20, colluding=0, security_bits=60, completion_bits=9)
    assert Aggregation.from_dict(rules.to_dict()) == rules
    assert (
        Aggregation(
            fewest=np.int64(5), dropouts=20, colluding=0, security_bits=60, completion_bits=9
        )
        == rules
    )  # type: ignore[arg-type]
    assert type(Aggregation(fewest=np.int64(5)).fewest) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fewest", 1),
        ("fewest", True),
        ("dropouts", -1),
        ("dropouts", 100),
        ("colluding", 2.5),
        ("security_bits", 0),
        ("completion_bits", "x"),
        ("every", -1),
        ("every", True),
        ("window", 1),
        ("set_aside_after", 0),
        ("arbiter", "00" * 63),
        ("arbiter", "XY" * 64),
        ("arbiter", None),
    ],
)
def test_a_field_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(SpecError, match=field):
        Aggregation(**{field: value})


@pytest.mark.parametrize(("every", "window"), [(60, 0), (60, 61), (0, 1)])
def test_the_window_is_within_the_schedule(every: int, window: int) -> None:
    assert Aggregation(every=60, window=60).window == 60
    with pytest.raises(SpecError, match=f"window={window}"):
        Aggregation(every=every, window=window)


def test_rules_of_before_the_schedule_keep_their_bytes() -> None:
    """Digests of old specs and evidence must not change; later rules are written if set."""
    old = {"fewest", "dropouts", "colluding", "security_bits", "completion_bits"}
    assert set(Aggregation().to_dict()) == old
    later = {"every": 3600, "window": 60, "arbiter": "0a" * 64, "set_aside_after": 86400}
    rules = Aggregation(**later)  # type: ignore[arg-type]
    assert rules.to_dict() == Aggregation().to_dict() | later
    assert Aggregation.from_dict(rules.to_dict()) == rules


def test_somebody_honest_must_be_left() -> None:
    assert Aggregation(dropouts=60, colluding=39).dropouts == 60
    with pytest.raises(SpecError, match="100 per cent"):
        Aggregation(dropouts=60, colluding=40)


@given(st.integers(0, 60), st.integers(0, 39), st.integers(100, 1000))
def test_feasible_rules_leave_a_quorum(dropouts: int, colluding: int, clients: int) -> None:
    """Where rounds are large, as many as the rules allow may drop out, and others agree."""
    rules, hundreds = Aggregation(dropouts=dropouts, colluding=colluding), clients // 100 * 100
    quorum = (hundreds + share_of(colluding, hundreds)) // 2 + 1
    if 2 * dropouts + colluding < 100:
        rules.require_feasible()
        assert quorum <= hundreds - share_of(dropouts, hundreds)
    else:
        with pytest.raises(SpecError, match="cannot both be allowed"):
            rules.require_feasible()
        assert quorum > hundreds - share_of(dropouts, hundreds)


def test_no_federation_is_founded_with_rules_that_cannot_be_kept(tmp_path: Path) -> None:
    """Old ones go on, with fewer drop-outs than they allow: evidence with such rules is read."""
    rules = Aggregation(dropouts=50, colluding=10)
    spec = Spec(dim=1, outputs=1, messages=("masked",), aggregation=rules)
    with pytest.raises(SpecError, match="cannot both be allowed"):
        found(tmp_path / "server", spec, SigningKey(b"o" * 32).public)
    assert not (tmp_path / "server").exists()
    assert Spec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize("content", [None, [], {}, Aggregation().to_dict() | {"more": 1}])
def test_other_keys_are_refused_by_name(content: Any) -> None:
    with pytest.raises(SpecError, match="with the keys"):
        Aggregation.from_dict(content)
