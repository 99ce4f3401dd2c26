"""Simulated federations: every law holds in them, the same seed does the same, and whatever breaks
a law is shown by few steps.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from expunge.errors import CarrierError, InputError
from expunge.testing.simulation import Outcome, Scenario, shrink, simulate
from expunge.testing.simulation.campaign import KINDS, Campaign, run_all
from expunge.wire.carrier import Carrier
from support import mutants, seeds
from support.memory_storage import MemoryDisk

FIXED, MASKED = range(6), 4
OF_SQLITE = ("back up", "restore the server")
ELSEWHERE = """
import sys
from pathlib import Path
from expunge.testing.simulation import Scenario, simulate
print(simulate(Scenario.drawn(int(sys.argv[1])), Path(sys.argv[2])).digest)
"""


def told(outcome: Outcome) -> str:
    """Nothing, or the law that was broken, and how to see it again."""
    if outcome.broken is None:
        return ""
    seed = outcome.scenario.seed
    return f"{outcome.broken} (expunge simulate --seeds {seed} --journal)"


@pytest.mark.parametrize("seed", FIXED)
def test_every_law_holds_with_fixed_seeds(seed: int, tmp_path: Path) -> None:
    assert told(simulate(Scenario.drawn(seed, masked=False), tmp_path / "disks")) == ""


def test_every_law_holds_under_secure_aggregation(tmp_path: Path) -> None:
    outcome = simulate(Scenario.drawn(MASKED, masked=True), tmp_path / "disks")
    assert told(outcome) == ""
    assert outcome.coverage["receipts"] > 0


def test_every_law_holds_with_a_seed_that_nobody_has_seen(tmp_path: Path) -> None:
    seed = seeds.chance("simulation").randrange(10**9)
    assert told(simulate(Scenario.drawn(seed), tmp_path / "disks")) == ""


def test_a_seed_does_the_same_in_another_process_and_at_another_path(tmp_path: Path) -> None:
    here = simulate(Scenario.drawn(3), tmp_path / "disks")
    elsewhere = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", ELSEWHERE, "3", str(tmp_path / "some" / "other" / "place")],
        env=os.environ | {"PYTHONHASHSEED": "17"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == here.digest
    assert simulate(Scenario.drawn(4), tmp_path / "disks").digest != here.digest


def test_a_folder_that_holds_anything_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("the only copy")
    with pytest.raises(InputError, match="is not empty: choose another folder"):
        simulate(Scenario.drawn(0), tmp_path)
    with pytest.raises(InputError, match="is not empty"):
        simulate(Scenario.drawn(0), tmp_path / "thesis")
    assert (tmp_path / "thesis").read_text() == "the only copy"


def test_steps_can_be_left_out_one_by_one(tmp_path: Path) -> None:
    """What is left does the same as before, as far as it can."""
    whole = simulate(Scenario.drawn(2, masked=False), tmp_path / "disks")
    last = max(whole.scenario.steps)
    fewer = simulate(whole.scenario.only([1, last]), tmp_path / "disks")
    first = [text for text in whole.journal if text.startswith("   1 ")]
    assert first == [text for text in fewer.journal if text.startswith("   1 ")] != []
    assert told(fewer) == ""


def test_many_seeds_have_everything() -> None:
    """Each kind of step and of fault has its seeds."""
    seen: Counter[str] = Counter()
    for scenario in (Scenario.drawn(seed) for seed in range(200)):
        seen.update(f"step: {kind}" for kind in scenario.weights)
        seen.update(f"network: {fate}" for fate in scenario.fates)
        seen.update(f"fault: {trouble}" for trouble in scenario.troubles)
        seen.update([f"damage: {scenario.damage}"] if scenario.damage else [])
    assert set(seen) == set(KINDS)
    assert min(seen.values()) > 5


def test_a_broken_law_is_found_and_the_steps_become_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played: answers come before the commit."""
    mutants.answers_come_before_the_commit(monkeypatch)
    scenarios = [Scenario.drawn(seed, masked=False) for seed in range(10)]
    campaign = run_all(scenarios, tmp_path, jobs=1, progress=lambda _: None)
    assert campaign.runs == 10
    assert campaign.broken
    worst = campaign.broken[0]
    assert worst.broken is not None
    law = worst.broken.law

    def fails(scenario: Scenario) -> bool:
        broken = simulate(scenario, tmp_path / "disks").broken
        return broken is not None and broken.law == law

    shortest = shrink(worst.scenario, fails, most=60)
    assert len(shortest.steps) <= 20
    assert fails(shortest)


def test_a_store_of_ones_own_is_tried(tmp_path: Path) -> None:
    scenario = Scenario.drawn(5, masked=False)
    weights = {kind: weight for kind, weight in scenario.weights.items() if kind not in OF_SQLITE}
    outcome = simulate(
        replace(scenario, weights=weights, damage=""), tmp_path / "disks", storage=MemoryDisk()
    )
    assert told(outcome) == ""
    assert outcome.coverage["receipts"] > 0


def test_a_carrier_of_ones_own_is_tried(tmp_path: Path) -> None:
    """One that does not bring every third request is found out."""

    class Forgetful:
        def __init__(self, line: Carrier) -> None:
            self.line, self.sent = line, 0

        def __getattr__(self, name: str) -> object:
            return getattr(self.line, name)

        def request(self, data: bytes) -> bytes:
            self.sent += 1
            if self.sent % 3 == 0:
                raise CarrierError("it is not known what became of it")
            return self.line.request(data)

    def forgetful(line: Carrier) -> Carrier:
        return cast("Carrier", Forgetful(line))

    scenario = Scenario.drawn(0, masked=False)
    assert told(simulate(scenario, tmp_path / "disks", carrier=lambda line: line)) == ""
    outcome = simulate(scenario, tmp_path / "disks", carrier=forgetful)
    assert "it is not known what became of it" in told(outcome)


def test_what_was_seen_adds_up() -> None:
    campaign = Campaign()
    scenario = Scenario.drawn(0)
    campaign.add(Outcome(scenario, None, 7, Counter({"step: add": 2, "receipts": 1}), "", []))
    campaign.add(Outcome(scenario, None, 5, Counter({"step: add": 1, "receipts": 1}), "", []))
    assert (campaign.runs, campaign.messages, campaign.receipts) == (2, 12, 2)
    assert "step: add" not in campaign.unseen
    assert "step: sync" in campaign.unseen
