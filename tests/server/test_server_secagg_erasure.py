"""What is left of a round in files: no mask key, self seed, share, masked vector or single client's
statistics, at any party.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from expunge import Statistics
from expunge.crypto import Envelope
from expunge.secagg import read_preamble
from expunge.secagg.keys import Secrets
from expunge.secagg.messages import read_client_message
from expunge.secagg.participant import ParticipantState
from expunge.secagg.shamir import SHARE_BYTES
from support.client_files import files_of, live_slots, referred_slots, rows_of
from support.masked_round import PHASE, Circle, drawn
from support.raw_bytes import raw_bytes


@pytest.fixture
def circle() -> Iterator[Circle]:
    with drawn() as one:
        yield one


class Spy:
    """Everything secret that was in the states of participants, and what travelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.needles: dict[str, bytes] = {}
        draw, write = Secrets.draw, ParticipantState.to_bytes

        def drawn_secrets(*arguments: object) -> Secrets:
            secrets = draw(*arguments)  # type: ignore[arg-type]
            for name, value in vars(secrets).items():
                self.needles[f"{name} {len(self.needles)}"] = value
            return secrets

        def written(state: ParticipantState) -> bytes:
            for at in range(0, len(state.held), SHARE_BYTES):
                self.needles[f"share {len(self.needles)}"] = state.held[at : at + SHARE_BYTES]
            return write(state)

        monkeypatch.setattr(Secrets, "draw", drawn_secrets)
        monkeypatch.setattr(ParticipantState, "to_bytes", written)

    def heard(self, circle: Circle) -> None:
        """Masked vectors and revealed shares, as they travelled."""
        for who, data in circle.way.said:
            if (
                who == "said"
                and data[:1] != b"{"
                and read_preamble(data).kind in ("masked", "reveal", "shares")
            ):
                body = bytes(read_client_message(data).body)
                for at in range(0, min(len(body), 480), 48):
                    self.needles[f"{read_preamble(data).kind} {len(self.needles)}"] = body[
                        at : at + 32
                    ]


def statistics(circle: Circle) -> dict[str, bytes]:
    """Entries of each client's own statistics, and of its samples'."""
    found = {}
    for name, held in circle.held.items():
        for number, (row, label) in enumerate(held.values()):
            for what, one in (
                (
                    f"{name} {number}",
                    Statistics.of(circle.spec, row[None, :], [label], lost_columns="accept"),
                ),
            ):
                found[f"{what} diagonal"] = int(one.diagonal()[0]).to_bytes(16, "little")
            found[f"{name} {number} row"] = row.astype("<f8").tobytes()[:16]
        own = circle.statistics({name: held})
        found[f"{name} diagonal"] = int(own.diagonal()[0]).to_bytes(16, "little")
    return found


def found_in(circle: Circle, needles: dict[str, bytes]) -> list[tuple[str, str]]:
    files = raw_bytes(circle.path)
    forms = {
        f"{what}, {how}": form
        for what, needle in needles.items()
        for how, form in (
            ("raw", needle),
            ("hexadecimal", needle.hex().encode()),
            ("base64", base64.b64encode(needle)[:40]),
        )
    }
    return [
        (what, name)
        for what, form in forms.items()
        for name, content in files.items()
        if form in content
    ]


@pytest.mark.parametrize("phase", ["sharing", "masking", "revealing", "done", "aborted"])
def test_no_file_holds_anything_that_could_open_a_clients_part(
    circle: Circle, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    spy = Spy(monkeypatch)
    circle.everybody_adds()
    if phase == "done":
        circle.go()
        circle.federation.fold()
    elif phase == "aborted":
        circle.until("revealing")
        circle.wait(PHASE)
        circle.pass_round()
    else:
        circle.until(phase)
    spy.heard(circle)
    assert len(spy.needles) >= 12
    assert found_in(circle, spy.needles | statistics(circle)) == []


def test_the_keys_of_a_round_that_is_over_are_destroyed(circle: Circle) -> None:
    """An old copy of a client's database does not open with the vault that is left."""
    circle.everybody_adds()
    copies = {}
    for phase in ("sharing", "masking", "revealing"):
        circle.until(phase)
        for name, store in circle.stores.items():
            query = "SELECT slot, sealed FROM kept WHERE name = 'participation'"
            (copies[phase, name],) = rows_of(store, query)
    circle.go()
    circle.check_whole()
    for (_, name), (slot, sealed) in copies.items():
        with (
            files_of(circle.stores[name]) as files,
            pytest.raises(Exception, match=r"destroyed|sealed|shredded|key"),
        ):
            files.vault.unseal(slot, sealed, b"kept\0participation")
    for store in circle.stores.values():
        assert live_slots(store) == referred_slots(store)


def test_the_needles_are_good(circle: Circle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: what is written by hand is found, also in an envelope."""
    spy = Spy(monkeypatch)
    circle.everybody_adds()
    circle.until("masking")
    what, needle = next(iter(spy.needles.items()))
    hidden = Envelope.signed(
        "standing", {"content": needle.hex()}, circle.federation.server_key
    ).to_bytes()
    (circle.path / "c0" / "forgotten").write_bytes(hidden)
    assert any(name.startswith(what) for name, _ in found_in(circle, {what: needle}))
