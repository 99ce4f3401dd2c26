"""The page on installation is run as it stands, on what `make dist` has left in dist/."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from expunge import __version__
from support.pages import ROOT, run_shell

pytestmark = pytest.mark.dist
# Each way to install begins with an environment of its own.
AFRESH = """
python3() {
    if [ "$1 $2" = "-m venv" ]; then rm -rf "$3"; fi
    command python3 "$@"
}
"""


def test_every_way_to_install_works(tmp_path: Path) -> None:
    for name in ("dist", "requirements"):
        (tmp_path / name).symlink_to(ROOT / name)
    printed = run_shell("docs/how-to/install.md", tmp_path, prelude=AFRESH, seconds=1200)
    assert "equal, bit for bit" in printed  # the demo
    assert "No broken requirements found." in printed
    wheel = ROOT / "dist" / f"expunge-{__version__}-py3-none-any.whl"
    # As SHA256SUMS, the SBOM and sha256sum have it
    assert printed.count(hashlib.sha256(wheel.read_bytes()).hexdigest()) == 2
    assert (tmp_path / "sbom.json").exists()
