"""Pages of the documentation that are run: their bash blocks, in their order, by real processes."""

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

from support.printed import Printed

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_page(page: Path, folder: Path) -> tuple[Printed, str]:
    """Run the commands of a page in a folder; what they printed, and the server's log.

    Any that fails fails the test.
    """
    blocks = BLOCK.findall(page.read_text())
    assert len(blocks) > 7
    script = "\n".join(["set -euo pipefail", *blocks]).replace("8443", str(free_port()))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    process = subprocess.Popen(  # noqa: S603 - our own page
        [str(shutil.which("bash")), "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=300)
    finally:
        with suppress(ProcessLookupError):  # the server too, if the script did not come to its end
            os.killpg(process.pid, signal.SIGKILL)
    log = (folder / "server.log").read_text()
    assert process.returncode == 0, printed + log
    assert '"event": "stopped"' in log
    return Printed(printed), log
