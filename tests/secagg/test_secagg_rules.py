"""The rules of secure aggregation: a value that is whole or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from expunge.errors import SpecError
from expunge.ridge.spec import Aggregation


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
    ],
)
def test_a_field_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(SpecError, match=field):
        Aggregation(**{field: value})


def test_somebody_honest_must_be_left() -> None:
    assert Aggregation(dropouts=60, colluding=39).dropouts == 60
    with pytest.raises(SpecError, match="100 per cent"):
        Aggregation(dropouts=60, colluding=40)


@pytest.mark.parametrize("content", [None, [], {}, Aggregation().to_dict() | {"more": 1}])
def test_other_keys_are_refused_by_name(content: Any) -> None:
    with pytest.raises(SpecError, match="exactly the keys"):
        Aggregation.from_dict(content)
