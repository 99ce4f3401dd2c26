"""Rounds on a schedule over Flower, whose nodes are run anew for each message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from expunge import Aggregation
from expunge.client import Selection
from support.flower_carrier import FlowerLane
from support.masked_federation import SPEC, closed_schedule

NAMES = ("c0", "c1", "c2")


def lane_of(path: Path, every: int, window: int) -> FlowerLane:
    rules = Aggregation(fewest=3, every=every, window=window)
    lane = FlowerLane(path, replace(SPEC, aggregation=rules))
    for name in NAMES:
        lane.enrol(name)
    return lane


def add(lane: FlowerLane, name: str) -> None:
    ids = [f"{name}-1", f"{name}-2"]
    lane.stores[name].add(ids, np.eye(2, 4) + 0.5, [0, 1], now=0)


def test_a_round_takes_place_in_a_window(tmp_path: Path) -> None:
    """One window follows the other here: the clock does not matter."""
    lane = lane_of(tmp_path, 3600, 3600)
    add(lane, "c1")
    for _ in range(12):
        waiting = [lane._conversation(name).waiting for name in NAMES]
        if not any(waiting):
            break
    assert lane.federation.service.status()["samples"] == 2
    (entry,) = lane.federation.entries("aggregated")
    assert [member["client"] for member in entry["clients"]] == list(NAMES)
    lane.close()


@pytest.mark.parametrize("has_changes", [False, True])
def test_outside_of_windows_nobody_asks_for_one(tmp_path: Path, has_changes: bool) -> None:
    schedule = closed_schedule()
    lane = lane_of(tmp_path, schedule.every, schedule.window)
    if has_changes:
        add(lane, "c0")
        lane.stores["c0"].forget(Selection(ids=["c0-2"]))
    done = lane._conversation("c0")
    assert ("the next round begins on" in done.waiting) == has_changes
    assert lane.federation.service.rounds is not None
    assert lane.federation.service.rounds.is_between_rounds
    lane.close()


def test_the_first_message_of_a_node_is_the_same_with_and_without_changes(tmp_path: Path) -> None:
    said = []
    for place in ("idle", "changing"):
        lane = lane_of(tmp_path / place, 3600, 3600)
        if place == "changing":
            add(lane, "c0")
        reply, _ = lane._deliver("c0", lane.handler.opening().to_parcel())
        said.append(
            [(call.name, [len(argument) for argument in call.arguments]) for call in reply.calls]
        )
        lane.close()
    assert said[0] == said[1]
    assert [name for name, _ in said[0]] == ["aggregate", "sync"]
