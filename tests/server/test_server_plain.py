"""A server whose federation does not use secure aggregation neither loads it nor answers turns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from expunge.errors import RefusedError
from support.federation import Federation
from support.masked_round import SPEC as MASKED_SPEC

LIFE = """
import sys
from pathlib import Path
import numpy as np
import expunge.server.http.app
from expunge.federation import Federation
from expunge.ridge.spec import Spec

spec = Spec(dim=2, labels=("cat", "dog"), **MASKED)
with Federation.found(Path(sys.argv[1]), spec) as federation:
    client = federation.client("clinic")
    client.add(["new"], np.ones((1, 2)), ["cat"])
    federation.sync()
print(*sorted(name for name in sys.modules if "secagg" in name))
"""


@pytest.mark.parametrize("masked", [False, True])
def test_secure_aggregation_is_loaded_where_the_spec_asks_for_it(
    tmp_path: Path, masked: bool
) -> None:
    options = f"messages={MASKED_SPEC.messages!r}" if masked else ""
    made = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", LIFE.replace("**MASKED", options), str(tmp_path / "federation")],
        capture_output=True,
        text=True,
        check=True,
    )
    names = made.stdout.split()
    assert ("expunge.secagg" in names, "expunge.server.secagg" in names) == (masked, masked)


def test_a_turn_is_refused_for_these_bytes(tmp_path: Path) -> None:
    with Federation(tmp_path / "server") as federation:
        with pytest.raises(RefusedError, match="does not use secure aggregation") as refusal:
            federation.service.aggregate(b"{}")
        assert refusal.value.code == "not-allowed"
        assert len(refusal.value.details["to"]) == 64
