"""Runs pytest again and again, each time with a fresh seed, until one run fails or time is up.

Run as a program: `random_runs.py MINUTES [what pytest is given]`. Each seed is printed before its
run. The exit code is 0 if no run has failed, and that of pytest otherwise, after the command that
replays the run.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from support import seeds

_FAILED = 1  # pytest's exit code if a test has failed
_MOST_SECONDS_TO_STOP = 60.0


def main(minutes: float, arguments: Sequence[str]) -> int:
    end, runs = time.monotonic() + 60.0 * minutes, 0
    command = [sys.executable, "-m", "pytest", "-q", "--exitfirst", *arguments]
    while (left := end - time.monotonic()) > 0.0:
        setting = f"{seeds.VARIABLE}={seeds.fresh()}"
        say(f"Run {runs + 1}: {setting}")
        code = run(command, setting, left)
        if code is None:
            break
        if code:
            say(f"Run {runs + 1} has failed. Replay it: {setting} {shlex.join(command)}")
            return code
        runs += 1
    say(f"Time is up: {runs} runs have passed, and no test has failed")
    return 0


def run(command: Sequence[str], setting: str, seconds: float) -> int | None:
    """The exit code of one run; None if it was interrupted because time is up."""
    name, _, value = setting.partition("=")
    with subprocess.Popen(command, env=os.environ | {name: value}) as process:  # noqa: S603 - our own tests
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            code = process.wait(_MOST_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    return code if code == _FAILED else None


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
