"""Rounds of secure aggregation through the whole service: exact, once, with evidence; drop-outs and
refusals change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.masked_federation import Masked


@pytest.fixture
def masked(tmp_path: Path) -> Iterator[Masked]:
    one = Masked.found(tmp_path)
    yield one
    one.federation.close()


def test_a_round_is_the_plain_sum(masked: Masked) -> None:
    masked.everybody_adds()
    done = masked.federation.sync()
    assert all(one.receipts and not one.waiting for one in done.values())
    masked.check()
    entry = done["client-0"].receipts[0].logged.entry
    assert (entry["kind"], entry["added"], entry["deleted"]) == ("aggregated", 12, 0)
    assert [member["client"] for member in entry["clients"]] == sorted(masked.held)
