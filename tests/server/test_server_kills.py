"""A server that is killed at any moment loses nothing that it acknowledged, and applies nothing
twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import killable_service, seeds

RUNNER = Path(killable_service.__file__)
RUNS = 12


def test_killed_at_any_moment_nothing_is_lost_and_nothing_applied_twice(tmp_path: Path) -> None:
    command = [sys.executable, str(RUNNER), str(tmp_path), str(seeds.seed()), str(RUNS)]
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 - our own program
    assert run.returncode == 0, run.stderr
    done = [int(number) for number in run.stdout.split()]
    assert len(done) == RUNS
    assert done == sorted(done)
    assert done[-1] > 0, "the server was always killed before it had done anything"
