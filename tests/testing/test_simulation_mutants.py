"""The simulator earns its keep: faults that are planted in the real code break a law, within a few
seeds, in scenarios in which without them every law holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from expunge.testing.simulation import Scenario, simulate
from support import mutants

SEEDS, STEPS = range(40), 50
TAG_SEEDS = range(40, 300)
CRASHES = ("crash-before", "crash-after", "torn")


@dataclass(frozen=True)
class Planted:
    """A fault, and where to look for it."""

    plant: mutants.Plant
    changes: Mapping[str, Any] = field(default_factory=dict)

    def scenario(self, seed: int) -> Scenario:
        return replace(
            Scenario.drawn(seed, steps=STEPS, masked=False), **({"damage": ""} | dict(self.changes))
        )


FAULTS = [
    Planted(mutants.files_are_not_synced),
    Planted(mutants.folders_are_not_synced),
    Planted(mutants.vaults_are_not_synced),
    Planted(mutants.answers_come_before_the_commit),
    Planted(mutants.keys_are_not_destroyed),
    Planted(mutants.the_server_erases_nothing),
    Planted(mutants.the_server_folds_nothing),
    Planted(
        mutants.the_salt_of_an_audit_stays,
        {"weights": {"add": 1, "sync": 6, "wait": 2, "audit": 3}, "troubles": []},
    ),
    Planted(mutants.the_journal_loses_an_entry),
    Planted(
        mutants.a_fold_leaves_an_entry_out,
        {"weights": {"add": 4, "forget": 2, "sync": 8, "fold": 1, "audit": 2}, "troubles": []},
    ),
    Planted(mutants.an_old_head_is_spoken_of),
    Planted(mutants.an_order_deletes_nothing),
    Planted(mutants.the_outbox_loses_a_sample),
    Planted(mutants.a_deletion_is_forgotten),
    Planted(
        mutants.a_command_is_erased_in_its_place,
        {
            "weights": {"add": 1, "audit": 4, "order": 4, "sync": 4, "kill": 1},
            "troubles": CRASHES,
            "trouble": 0.5,
        },
    ),
    Planted(
        mutants.vaults_have_no_checksums,
        {"damage": "flipped bit in a vault"},
    ),
    Planted(
        mutants.every_jump_of_the_clock_is_followed,
        {"weights": {"add": 4, "sync": 8, "set a clock": 2}, "troubles": []},
    ),
    Planted(
        mutants.nobody_marks_how_far_a_log_came,
        {"damage": "lost log"},
    ),
]


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.plant.__name__)
def test_a_planted_fault_is_found(planted: Planted, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        planted.plant(patch)
        for seed in SEEDS:
            broken = simulate(planted.scenario(seed), tmp_path / "disks").broken
            if broken is not None:
                break
        else:
            pytest.fail(f"not found with {len(SEEDS)} seeds")
        assert not re.search("TypeError|AttributeError", str(broken))  # of the planted code itself
    assert simulate(planted.scenario(seed), tmp_path / "disks").broken is None


def test_orders_that_go_by_tags_are_found_where_flips_hit_tags(tmp_path: Path) -> None:
    """Random flips hit a tag that matters too rarely. By sealed names nobody is left out."""
    few = Scenario.drawn(0, steps=5, masked=False)
    changes = {"weights": {"add": 1, "sync": 1}, "fates": {}, "troubles": [], "clients": 1}
    scenario = replace(few, damage="flipped bit", mirrored=False, **changes)
    with pytest.MonkeyPatch.context() as patch:
        mutants.flips_hit_tags(patch)
        with pytest.MonkeyPatch.context() as fault:
            mutants.orders_go_by_tags(fault)
            for seed in TAG_SEEDS:
                broken = simulate(replace(scenario, seed=seed), tmp_path / "disks").broken
                if broken is not None and broken.law == "orders complete":
                    break
            else:
                pytest.fail(f"not found with {len(TAG_SEEDS)} seeds")
        assert simulate(replace(scenario, seed=seed), tmp_path / "disks").broken is None
