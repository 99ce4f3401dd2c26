"""The office: each command takes effect once, whatever is lost."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from expunge import office as office_folder
from expunge.cli._command import message
from expunge.errors import CarrierError, ProtocolError, RefusedError, StoreBusyError, StoreError
from expunge.office import Office
from expunge.storage.machine import mounted
from support.disks import SmallDisk
from support.offices import Place


def test_commands_are_numbered_and_questions_change_nothing(place: Place) -> None:
    before = place.service.state.log.size
    assert place.office.ask("status", {})["federation"] == place.office.federation
    assert place.service.state.log.size == before
    assert place.office.do("order", {"subject": "p-1"})["state"] == "complete"
    assert place.office.do("order", {"subject": "p-1"})["state"] == "complete"
    assert place.orders() == 2
    assert place.service.state.actor("operator").sequence == 2


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_command_whose_answer_was_lost_is_offered_again_and_takes_effect_once(
    place: Place, lost: str, crash: bool
) -> None:
    place.carrier.lose = lost
    with pytest.raises(CarrierError):
        place.office.do("order", {"subject": "p-1"})
    if crash:
        place.reopened()
    assert place.office.under_way == "order"
    place.carrier.lose = ""
    order = place.office.do("order", {"subject": "p-1"})
    assert order["state"] == "complete"
    assert place.orders() == 1
    assert place.carrier.offered[0] == place.carrier.offered[1]
    assert place.office.under_way == ""


@pytest.mark.parametrize("cut", ["there", "back"])
def test_a_command_that_was_cut_short_is_offered_again_and_takes_effect_once(
    place: Place, cut: str
) -> None:
    place.carrier.cut = cut
    with pytest.raises(CarrierError):
        place.office.ask("status", {})
    with pytest.raises(CarrierError):
        place.office.do("order", {"subject": "p-1"})
    assert place.office.under_way == "order"
    place.carrier.cut = ""
    assert place.office.do("order", {"subject": "p-1"})["state"] == "complete"
    assert place.orders() == 1
    assert place.carrier.offered[1] == place.carrier.offered[2]


def test_another_command_first_brings_the_one_under_way_to_its_end(place: Place) -> None:
    place.carrier.lose = "before"
    with pytest.raises(CarrierError):
        place.office.do("order", {"subject": "p-1"})
    place.carrier.lose = ""
    place.office.do("order", {"subject": "p-2"})
    assert place.orders() == 2
    assert place.office.notices == [
        "the earlier command order, which had no answer, has been carried out, once"
    ]


def test_a_refused_command_under_way_does_not_stand_in_the_way_of_another(place: Place) -> None:
    place.carrier.lose = "before"
    with pytest.raises(CarrierError):
        place.office.do("close-order", {"order": "none"})
    place.carrier.lose = ""
    place.office.do("order", {"subject": "p-2"})
    assert place.orders() == 1
    assert (
        "close-order, which had no answer, was refused: there is no order"
        in place.office.notices[0]
    )


def test_a_crash_between_the_result_and_its_note_does_no_harm(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(office_folder.OfficeFolder, "drop_command", die)
    with pytest.raises(KeyboardInterrupt):
        place.office.do("order", {"subject": "p-1"})
    monkeypatch.undo()
    assert (place.path / "operator" / "command").exists()
    assert place.reopened().under_way == ""
    place.office.do("order", {"subject": "p-1"})
    assert place.orders() == 2


def test_a_refusal_ends_the_command_and_the_next_one_is_fine(place: Place) -> None:
    with pytest.raises(RefusedError, match="there is no command 'nonsense'"):
        place.office.do("nonsense", {})
    assert place.office.under_way == ""
    assert place.office.do("order", {"subject": "p-1"})["state"] == "complete"


@pytest.mark.parametrize("code", ["storage", "too-many", "malformed", "too-large"])
def test_a_command_in_doubt_is_kept_when_a_repetition_is_turned_away(
    place: Place, code: str
) -> None:
    place.carrier.lose = "after"
    with pytest.raises(CarrierError):
        place.office.do("order", {"subject": "p-1"})
    place.carrier.lose, place.carrier.refuse = "", code
    for _ in range(2):
        with pytest.raises(RefusedError):
            place.reopened().do("order", {"subject": "p-1"})
    assert place.office.under_way == "order"
    place.carrier.refuse = ""
    place.office.do("order", {"subject": "p-1"})
    assert place.orders() == 1
    assert len(set(place.carrier.offered[:4])) == 1


@pytest.mark.parametrize("code", ["storage", "too-many"])
def test_no_other_command_is_begun_while_one_is_in_doubt(place: Place, code: str) -> None:
    place.carrier.lose = "after"
    with pytest.raises(CarrierError):
        place.office.do("order", {"subject": "p-1"})
    place.carrier.lose, place.carrier.refuse = "", code
    with pytest.raises(RefusedError) as refusal:
        place.office.do("close-order", {"order": "none"})
    assert "earlier command order" in message(refusal.value)
    assert "this one was not begun" in message(refusal.value)
    assert place.office.under_way == "order"
    place.carrier.refuse = ""
    place.office.do("order", {"subject": "p-2"})
    assert place.orders() == 2
    assert place.office.notices == [
        "the earlier command order, which had no answer, has been carried out, once"
    ]


@pytest.mark.parametrize(("lost", "orders"), [("before", 1), ("after", 2)])
def test_a_command_in_doubt_that_is_not_taken_any_more_makes_way_by_its_number(
    place: Place, lost: str, orders: int
) -> None:
    """Of two commands of one number at most one takes effect: the other command is sent under the
    next one if need be.
    """
    place.carrier.lose = lost
    with pytest.raises(CarrierError):
        place.office.do("order", {"subject": "p-1"})
    place.carrier.lose = ""
    earlier, first = place.carrier.carrier, place.carrier.offered[0]

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(earlier, name)

        def command(self, data: bytes) -> bytes:
            if data == first:
                raise RefusedError("malformed", "the body did not arrive in time")
            return earlier.command(data)

    place.carrier.carrier = Refusing()  # type: ignore[assignment]
    place.office.do("order", {"subject": "p-2"})
    assert place.orders() == orders
    assert "may have been carried out before" in place.office.notices[0]
    assert place.office.under_way == ""


@pytest.mark.parametrize("code", ["too-many", "malformed"])
def test_a_command_that_was_turned_away_at_once_is_not_carried_out_later(
    place: Place, code: str
) -> None:
    place.carrier.refuse = code
    with pytest.raises(RefusedError):
        place.office.do("order", {"subject": "p-1"})
    place.carrier.refuse = ""
    assert place.office.under_way == ""
    place.office.do("order", {"subject": "p-2"})
    assert place.orders() == 1


def test_no_file_names_a_subject_afterwards(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    folder = place.path / "operator"
    place.carrier.lose = "before"
    with pytest.raises(CarrierError):
        place.office.do("order", {"subject": "alice-liddell"})
    content = (folder / "command").read_bytes()
    (place.path / "disk").hardlink_to(
        folder / "command"
    )  # what a look at the disk itself would find
    place.carrier.lose = ""
    place.office.do("order", {"subject": "alice-liddell"})
    assert (place.path / "disk").read_bytes() == bytes(len(content))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(Killed):
            place.office.do("order", {"subject": "alice-liddell"})
    assert (folder / "command.part").exists()
    place.reopened()
    assert sorted(file.name for file in folder.iterdir()) == [
        "lock",
        "office.json",
        "office.key",
        "orders",
    ]


def test_orders_filed_from_here_are_remembered_by_their_ids_until_they_are_closed(
    place: Place,
) -> None:
    place.carrier.lose = "after"
    with pytest.raises(CarrierError):
        place.office.do("order", {"subject": "p-1"})
    place.carrier.lose = ""
    first = place.office.do("order", {"subject": "p-1"})["order"]
    second = place.office.do("order", {"subject": "p-2"})["order"]
    assert place.reopened().filed == [first, second]
    place.office.do("close-order", {"order": first})
    assert place.office.filed == [second]
    place.office.drop_order(second)
    assert place.reopened().filed == []


def test_an_old_copy_of_the_office_finds_its_way_back_into_step(place: Place) -> None:
    old = (place.path / "operator" / "office.json").read_bytes()
    place.office.do("order", {"subject": "p-1"})
    place.office.do("order", {"subject": "p-2"})
    (place.path / "operator" / "office.json").write_bytes(old)
    place.reopened().do("order", {"subject": "p-3"})
    assert place.orders() == 3


def test_a_server_of_an_older_backup_is_followed_backwards(place: Place) -> None:
    state = place.path / "operator" / "office.json"
    place.office.do("order", {"subject": "p-1"})
    state.write_bytes(state.read_bytes().replace(b'"sequence":1', b'"sequence":7'))
    place.reopened().do("order", {"subject": "p-2"})
    assert place.orders() == 2
    assert place.service.state.actor("operator").sequence == 2


def test_one_process_at_a_time(place: Place) -> None:
    with pytest.raises(StoreBusyError, match="is in use by process"):
        Office.open(place.path / "operator", place.carrier)


def test_the_key_is_for_its_owner_alone(place: Place) -> None:
    assert stat.S_IMODE((place.path / "operator" / "office.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((place.path / "operator").stat().st_mode) == 0o700


def test_an_officer_is_refused_what_is_for_operators(place: Place) -> None:
    with Office.enrol(place.path / "office", place.token("o", "officer"), place.carrier) as office:
        with pytest.raises(RefusedError, match="this is for operators"):
            office.do("rotate-key", {})
        assert office.under_way == ""


def test_damage_and_absence_are_named(place: Place, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"office\.key is missing"):
        Office.open(tmp_path / "nowhere")
    with pytest.raises(ProtocolError, match="has no way to its server"):
        place.reopened().connect(None).ask("status", {})  # type: ignore[arg-type]
    place.office.connect(place.carrier)


def test_a_full_disk_of_the_office_is_said_and_nothing_was_asked(place: Place) -> None:
    disk = SmallDisk(place.path / "operator")
    with mounted(disk.path, disk):
        disk.fill()
        with pytest.raises(StoreError, match=r"No space left on device\. Mend that, or move"):
            place.office.do("order", {"subject": "p-1"})
        assert (place.orders(), place.office.under_way) == (0, "")
        disk.size += 1 << 20
        assert place.office.do("order", {"subject": "p-1"})["state"] == "complete"
    assert place.orders() == 1
