"""The Flower carrier keeps the contract: with nodes that begin anew for each message."""

from __future__ import annotations

from support.carrier_contract import Contract
from support.flower_carrier import FlowerLane


class TestFlower(Contract):
    lane_type = FlowerLane
