"""The HTTP carrier keeps the contract: over TLS, on a wire that can be cut in the middle of a
message.
"""

from __future__ import annotations

from support.carrier_contract import CallingContract
from support.carriers import HttpLane


class TestHttp(CallingContract):
    lane_type = HttpLane
    steps = 6
