"""The local carrier keeps the contract."""

from __future__ import annotations

from support.carrier_contract import CallingContract
from support.carriers import LocalLane


class TestLocal(CallingContract):
    lane_type = LocalLane
