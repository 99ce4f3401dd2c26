"""Rounds of secure aggregation through the whole service: exact, once, with evidence; drop-outs and
refusals change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
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


def test_a_federation_in_one_process_waits_for_nobody_who_cannot_come(tmp_path: Path) -> None:
    """Three of four clients have something to change: their round begins when all four have had
    their turn, however long rounds gather clients elsewhere, and not before, however slow they are.
    """
    masked = Masked.found(tmp_path, gather_for=3600.0, phase_for=3600.0)
    for name in list(masked.held)[:3]:
        masked.add(name)
    done = masked.federation.sync()
    assert [bool(synced.receipts) for synced in done.values()] == [True, True, True, False]
    masked.check()
    masked.federation.close()


def test_new_clients_take_part_in_a_round_before_their_first_sync(tmp_path: Path) -> None:
    """They know nothing of the log yet: the server was accused of showing another one."""
    masked = Masked.found(tmp_path, 3)
    for name in masked.held:
        masked.held[name] = {f"{name}-0": (np.array([1.0, 2.0, 3.0, 4.0]), 1)}
        masked.federation.client(name).add([f"{name}-0"], [[1.0, 2.0, 3.0, 4.0]], ["yes"])
    masked.federation.sync()
    masked.check()
    masked.federation.close()
