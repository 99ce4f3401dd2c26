"""The local carrier keeps the contract."""

from __future__ import annotations

from contract import CallingContract
from lanes import LocalLane


class TestLocal(CallingContract):
    lane_type = LocalLane
