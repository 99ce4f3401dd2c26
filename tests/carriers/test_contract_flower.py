"""The Flower carrier keeps the contract: with nodes that begin anew for each message."""

from __future__ import annotations

from contract import Contract
from flower_lane import FlowerLane


class TestFlower(Contract):
    lane_type = FlowerLane
