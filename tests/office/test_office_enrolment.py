"""How an officer or operator enrols: once, whatever is lost, and at no false server."""

from __future__ import annotations

import pytest

from expunge.crypto import SigningKey
from expunge.errors import CarrierError, EvidenceError, ProtocolError, RefusedError, StoreError
from expunge.office import Office
from expunge.wire.token import Token
from support.offices import Place


@pytest.mark.parametrize("role", ["officer", "operator"])
def test_enrolment_by_token(place: Place, role: str) -> None:
    token = place.token("privacy-office", role)
    with Office.enrol(place.path / "office", token, place.carrier, address="there") as office:
        assert (office.name, office.role, office.address) == ("privacy-office", role, "there")
        assert office.do("order", {"subject": "p-1"})["state"] == "complete"
    with Office.open(place.path / "office", place.carrier) as office:
        assert office.do("order", {"subject": "p-2"})["state"] == "complete"


@pytest.mark.parametrize("lost", ["before", "after"])
def test_an_enrolment_whose_answer_was_lost_is_finished_by_the_same_call(
    place: Place, lost: str
) -> None:
    token = place.token("privacy-office", "officer")
    place.carrier.lose = lost
    with pytest.raises(CarrierError):
        Office.enrol(place.path / "office", token, place.carrier)
    with pytest.raises(StoreError, match="was never enrolled"):
        Office.open(place.path / "office", place.carrier)
    place.carrier.lose = ""
    Office.enrol(place.path / "office", token, place.carrier).close()
    assert [one["name"] for one in place.office.ask("clients", {})] == [
        "operator",
        "privacy-office",
    ]


@pytest.mark.parametrize("code", ["too-many", "bad-token"])
def test_an_enrolment_that_may_have_taken_effect_keeps_its_key(place: Place, code: str) -> None:
    token = place.token("privacy-office", "officer")
    place.carrier.lose = "after"
    with pytest.raises(CarrierError):
        Office.enrol(place.path / "office", token, place.carrier)
    place.carrier.lose, place.carrier.refuse = "", code
    with pytest.raises(RefusedError):
        Office.enrol(place.path / "office", token, place.carrier)
    place.carrier.refuse = ""
    with Office.enrol(place.path / "office", token, place.carrier) as office:
        assert office.do("order", {"subject": "p-1"})["state"] == "complete"


def test_an_enrolment_that_took_effect_is_kept_when_a_later_question_is_refused(
    place: Place,
) -> None:
    token = place.token("privacy-office", "officer")
    place.office.do("rotate-key", {})  # so that the office has to ask which key signed

    class Busy:
        def enrol(self, data: bytes) -> bytes:
            return place.carrier.enrol(data)

        def federation(self) -> bytes:
            raise RefusedError("not-allowed", "no")

    with pytest.raises(RefusedError):
        Office.enrol(place.path / "office", token, Busy())  # type: ignore[arg-type]
    with Office.enrol(place.path / "office", token, place.carrier) as office:
        assert office.do("order", {"subject": "p-1"})["state"] == "complete"


def test_a_refused_enrolment_leaves_nothing_behind(place: Place) -> None:
    token = place.token("privacy-office", "officer")
    Office.enrol(place.path / "office", token, place.carrier).close()
    with pytest.raises(RefusedError, match="enrolled already"):
        Office.enrol(place.path / "other", token, place.carrier)
    assert not (place.path / "other").exists()
    with pytest.raises(StoreError, match="is the office of privacy-office already"):
        Office.enrol(place.path / "office", token, place.carrier)


def test_a_token_for_a_client_or_a_full_folder_is_refused(place: Place) -> None:
    with pytest.raises(ProtocolError, match="is for a client"):
        Office.enrol(place.path / "office", place.token("hospital", "client"), place.carrier)
    with pytest.raises(StoreError, match="is not empty"):
        Office.enrol(place.path / "server", place.token("officer", "officer"), place.carrier)


def test_enrolment_after_a_rotation_and_by_a_false_server(place: Place) -> None:
    token = place.token("privacy-office", "officer")
    place.office.do("rotate-key", {})
    with Office.enrol(place.path / "office", token, place.carrier) as office:
        assert office.server == place.server_key.public
    other = place.token("other-office", "officer")
    false = Token(
        other.federation,
        other.name,
        other.role,
        other.secret,
        SigningKey(bytes(32)).public,
        other.urls,
    )
    with pytest.raises(EvidenceError, match=r"not linked to the given key|nor linked to it"):
        Office.enrol(place.path / "other", false, place.carrier)
