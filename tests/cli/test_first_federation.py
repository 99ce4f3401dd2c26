"""The page that leads to a first federation is run: its bash blocks, in their order, by real processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "first-federation.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) > 10
    script = "\n".join(["set -euo pipefail", *blocks]).replace("8443", str(free_port()))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
    }
    process = subprocess.Popen(  # noqa: S603 - our own page
        [str(shutil.which("bash")), "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=180)
    finally:
        with suppress(ProcessLookupError):  # the server too, if the script did not come to its end
            os.killpg(process.pid, signal.SIGKILL)
    log = (tmp_path / "server.log").read_text()
    assert process.returncode == 0, printed + log
    assert printed.count("carried out: 2 samples found and deleted") == 2
    assert re.search(r"Audit [0-9a-f]{8}: equal", printed)
    assert "It holds. Evidence of erasure order" in printed
    assert "It holds. Receipt for request 2 of garden-a" in printed
    assert "Error: altered.html does not hold" in printed
    rows = [row.split(",")[:2] for row in (tmp_path / "predictions.csv").read_text().splitlines()]
    assert rows == [["id", "label"], ["x1", "setosa"], ["x2", "versicolor"], ["x3", "virginica"]]
    assert '"event": "stopped"' in log
