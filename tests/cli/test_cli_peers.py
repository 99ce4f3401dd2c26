"""`expunge client key`, `peers` and `pin`: whose keys are believed in rounds of secure
aggregation.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from expunge.client import ClientStore
from expunge.client.trust import Peers
from expunge.crypto import PublicKey, SigningKey
from support import seeds
from support.cli import Federation, run, value
from support.printed import WIDE

MASKED = ("--dim", 3, "--labels", "cat,dog", "--secure-aggregation")
STRANGER = SigningKey(bytes(range(32))).public


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path, *MASKED)


@pytest.fixture(scope="module")
def unpinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client among three, for tests that change nothing of it."""
    with seeds.apart("unpinned"):
        place = Federation.found(tmp_path_factory.mktemp("unpinned"), *MASKED)
        folders = [place.enrol(name) for name in ("clinic-a", "clinic-b", "clinic-c")]
        run("client", "sync", "--dir", folders[0])
    return folders[0]


@pytest.fixture
def clients(place: Federation) -> dict[str, Path]:
    """Three clients, the first of which has seen the log."""
    folders = {name: place.enrol(name) for name in ("clinic-a", "clinic-b", "clinic-c")}
    run("client", "sync", "--dir", folders["clinic-a"])
    return folders


def test_ids_are_the_same_at_the_client_itself_and_in_the_list_of_another(
    clients: dict[str, Path], tmp_path: Path
) -> None:
    listed = {
        one["name"]: one for one in value("client", "peers", "--dir", clients["clinic-a"])["peers"]
    }
    assert set(listed) == set(clients)
    shown = run("client", "peers", "--dir", clients["clinic-a"]).stdout
    for name, folder in clients.items():
        own = value("client", "key", "--dir", folder)
        assert (listed[name]["id"], listed[name]["key"]) == (own["id"], own["key"])
        assert (listed[name]["state"], listed[name]["from"], listed[name]["believed"]) == (
            "active",
            "log",
            True,
        )
        first, second = (
            " ".join(own["id"][at : at + 4] for at in range(start, start + 32, 4))
            for start in (0, 32)
        )
        assert first in shown
        assert second in shown
        for columns in (40, 120):
            assert (
                first in run("client", "key", "--dir", folder, env={"COLUMNS": str(columns)}).stdout
            )
    run("client", "key", "--dir", clients["clinic-b"], "-o", tmp_path / "b.pub")
    assert PublicKey.from_pem((tmp_path / "b.pub").read_bytes()).text == listed["clinic-b"]["key"]


def test_the_log_is_read_once_and_then_no_server_is_asked(
    clients: dict[str, Path], place: Federation
) -> None:
    before = value("client", "peers", "--dir", clients["clinic-a"])
    assert (
        value("client", "peers", "--dir", clients["clinic-a"], "--at", place.path / "nowhere")
        == before
    )
    assert "sync first" in run("client", "peers", "--dir", clients["clinic-b"]).stdout
    run("client", "sync", "--dir", clients["clinic-b"])
    assert (
        "no federation in"
        in run(
            "client", "peers", "--dir", clients["clinic-b"], "--at", place.path / "nowhere", code=1
        ).stderr
    )


def test_what_was_exported_can_be_pinned_and_dropped(
    clients: dict[str, Path], tmp_path: Path
) -> None:
    folder, file = clients["clinic-a"], tmp_path / "peers.json"
    assert (
        f"expunge client pin {file} --dir {folder}"
        in run("client", "peers", "--dir", folder, "-o", file).stdout
    )
    keys = json.loads(file.read_text())
    assert set(keys) == set(clients)
    assert value("client", "pin", file, "--dir", folder) == {
        "pins": keys,
        "different": [],
        "not_pinned": [],
    }
    assert {one["from"] for one in value("client", "peers", "--dir", folder)["peers"]} == {"pin"}
    assert value("client", "status", "--dir", folder)["aggregation"]["pins"] == 3
    assert value("client", "pin", "--clear", "--dir", folder)["pins"] == {}
    assert {one["from"] for one in value("client", "peers", "--dir", folder)["peers"]} == {"log"}


def test_who_is_not_pinned_is_pointed_out_and_the_own_key_always_is(
    clients: dict[str, Path], tmp_path: Path
) -> None:
    folder, file = clients["clinic-a"], tmp_path / "b.pub"
    run("client", "peers", "--dir", folder)
    own, other = (
        value("client", "key", "--dir", clients[name])["key"] for name in ("clinic-a", "clinic-b")
    )
    run("client", "key", "--dir", clients["clinic-b"], "-o", file)
    told = value("client", "pin", f"clinic-b={file}", "--dir", folder)
    assert told == {
        "pins": {"clinic-a": own, "clinic-b": other},
        "different": [],
        "not_pinned": ["clinic-c"],
    }
    assert (
        "Rounds with clients that are not pinned are refused: clinic-c."
        in run("client", "pin", f"clinic-b={other}", "--dir", folder).stdout
    )
    assert "log; not pinned: refused" in run("client", "peers", "--dir", folder, env=WIDE).stdout
    believed = {
        one["name"]: one["believed"] for one in value("client", "peers", "--dir", folder)["peers"]
    }
    assert believed == {"clinic-a": True, "clinic-b": True, "clinic-c": False}


def test_a_pin_that_the_log_contradicts_is_kept_and_is_evidence(clients: dict[str, Path]) -> None:
    folder = clients["clinic-a"]
    run("client", "peers", "--dir", folder)
    told = value("client", "pin", f"clinic-c={STRANGER.text}", "--dir", folder, code=3)
    assert told["different"] == ["clinic-c"]
    assert "THE LOG HAS ANOTHER" in run("client", "peers", "--dir", folder, code=3).stdout
    found = {one["name"]: one for one in value("client", "peers", "--dir", folder, code=3)["peers"]}
    assert (found["clinic-c"]["id"], found["clinic-c"]["believed"]) == (STRANGER.id, False)


def test_a_log_with_another_key_for_this_client_is_pointed_out(clients: dict[str, Path]) -> None:
    folder = clients["clinic-a"]
    run("client", "peers", "--dir", folder)
    with ClientStore.open(folder) as store:
        known = Peers.from_text(store.recall("peers"))
        forged = Peers(known.frontier, dict(known.keys) | {"clinic-a": STRANGER.text}, known.states)
        store.remember({"peers": forged.to_text()})
    shown = run("client", "peers", "--dir", folder, code=None).stdout.words
    assert "another key for this client than its own" in shown


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ([], 2, "give keys to pin, or --clear"),
        (["clinic-b"], 1, "neither a file of keys nor NAME=KEY"),
        (["clinic-b="], 1, "neither a file of keys nor NAME=KEY"),
        (["clinic-b=nonsense"], 1, "public key"),
        (["Clinic B=" + STRANGER.text], 1, "must be a name"),
        (["clinic-a=" + STRANGER.text], 1, "another key of clinic-a is its own"),
        (
            ["clinic-b=" + STRANGER.text, "clinic-b=" + SigningKey(bytes(32)).public.text],
            1,
            "pinned already",
        ),
        (["--clear", "clinic-b=" + STRANGER.text], 2, "give keys to pin, or --clear"),
    ],
)
def test_bad_pins_change_nothing(unpinned: Path, given: list[str], code: int, message: str) -> None:
    assert message in run("client", "pin", *given, "--dir", unpinned, code=code).stderr
    with ClientStore.open(unpinned) as store:
        assert not store.recall("pins")


@pytest.mark.parametrize(
    "content", ["", "[]", '{"clinic-b": 7}', '{"clinic-b": "short"}', '{"Clinic B": "x"}', "\x00"]
)
def test_a_file_that_holds_no_keys_is_refused(unpinned: Path, tmp_path: Path, content: str) -> None:
    file = tmp_path / "peers.json"
    file.write_text(content)
    assert "not a file of keys" in run("client", "pin", file, "--dir", unpinned, code=1).stderr
    with ClientStore.open(unpinned) as store:
        assert not store.recall("pins")
