"""The commands of the page on clients' backups are run, by real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.client import ClientStore
from support.cli import Federation, run
from support.pages import run_shell

# Questions are answered with yes. Exit code 6: nothing has lost its source.
AT_THE_KEYBOARD = 'expunge() { command expunge "$@" <<< y || [ $? = 6 ]; }'
SAMPLES = "id,subject,label,x,y,z\na1,patient-4711,cat,1,2,3\na2,p1,dog,2,1,0.5\na3,p2,cat,0,1,1\n"


@pytest.mark.long
def test_the_page_on_backups_of_clients(tmp_path: Path) -> None:
    place = Federation.found(tmp_path)
    run(
        "server",
        "token",
        "hospital-a",
        "-o",
        tmp_path / "hospital-a.token",
        "--office",
        place.office,
    )
    (tmp_path / "samples.csv").write_text(SAMPLES)
    other = tmp_path / "other"
    other.mkdir()
    run_shell(
        "docs/how-to/back-up-a-client.md",
        tmp_path,
        prelude=AT_THE_KEYBOARD,
        changes={"/mnt/other": str(other)},
    )
    with ClientStore.open(tmp_path / "hospital-a2") as store:
        assert (store.status().live, store.is_resetting) == (2, False)
