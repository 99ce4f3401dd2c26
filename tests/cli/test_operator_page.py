"""The commands of the README and of the operator's page are run, by real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import Federation
from support.pages import free_port, run_shell

# Questions are answered with yes. A server is stopped as soon as it is ready.
AT_THE_KEYBOARD = """
expunge() {
    if [ "$1" != serve ]; then
        command expunge "$@" <<< y
        return
    fi
    command expunge "$@" --json > serving.json 2>> server.log < /dev/null &
    until [ -s serving.json ]; do kill -0 $!; sleep 0.1; done
    cat serving.json
    rm serving.json
    kill -TERM $!
    wait $!
}
"""
# Exit code 7: the client answers the audit at its next sync.
NOT_COMPLETE = 'expunge() { command expunge "$@" <<< y || [ $? = 7 ]; }'


@pytest.mark.long
def test_the_operators_page(tmp_path: Path) -> None:
    here = {
        "expunge.example.org": "localhost",
        "8443": str(free_port()),
        "8080": str(free_port()),
    }
    printed = run_shell(
        "docs/how-to/operate-a-server.md", tmp_path, prelude=AT_THE_KEYBOARD, changes=here
    )
    assert "expunge client sync --dir CLIENT --accept-restored" in printed
    assert (tmp_path / "server.log").read_text().count('"event": "stopped"') == 3
    assert (tmp_path / "federation" / "rotation-1.json").exists()


def test_the_readme(tmp_path: Path) -> None:
    place = Federation.found(tmp_path)
    rows = "id,subject,label,x,y,z\n1,patient 12,cat,1,2,3\n2,patient 13,dog,2,1,0.5\n"
    folder = place.client("hospital-a", rows)
    prelude = f"""
        export EXPUNGE_OFFICE=federation/operator
        expunge client receipts last -o receipt.json --dir {folder.name}
        cp federation/server.pub .
        {NOT_COMPLETE}
    """
    printed = run_shell("README.md", tmp_path, prelude=prelude)
    assert "Verified: Receipt for request 1 of hospital-a" in printed
    assert "Samples recomputed" in printed
    assert place.samples() == 1
