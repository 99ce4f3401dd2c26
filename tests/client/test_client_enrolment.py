"""Enrolment by a one-time token: once, by the right server, with the right backbone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from expunge.client import ClientStore, enrol
from expunge.crypto import Envelope
from expunge.errors import (
    BackboneError,
    CarrierError,
    EvidenceError,
    ProtocolError,
    RefusedError,
    StoreError,
)
from expunge.wire.token import Token
from support.agents import Home
from support.federation import SPEC, make_key


def _refusing(code: str) -> Callable[[bytes], bytes]:
    def refuse(_: bytes) -> bytes:
        raise RefusedError(code, "no")

    return refuse


class TestEnrolment:
    def test_a_new_client(self, home: Home) -> None:
        assert (home.store.name, home.store.spec, home.store.message) == ("ward-3", SPEC, "rows")
        assert home.store.server == home.federation.first_key.public
        assert (home.store.address, home.store.ca, home.store.status().enrolled) == (
            "https://x",
            "",
            True,
        )
        assert home.federation.service.state.actor("ward-3").public_key == home.store.key.public

    @pytest.mark.parametrize("lost", ["before", "after"])
    def test_after_a_lost_answer_the_same_call_finishes_it(self, home: Home, lost: str) -> None:
        token = home.token("ward-4")
        home.way.lost = ["", lost]
        with pytest.raises(CarrierError):
            enrol(home.path / "ward-4", token, home.way)
        with ClientStore.open(home.path / "ward-4") as store:
            key = store.key.public
            with pytest.raises(StoreError, match="never enrolled"):
                home.agent_of(store).sync()
        with enrol(home.path / "ward-4", token, home.way) as store:
            assert store.key.public == key
            assert home.agent_of(store).sync().status == "active"
        with pytest.raises(StoreError, match="the store of client ward-4 already"):
            enrol(home.path / "ward-4", token, home.way)

    def test_a_refused_client_leaves_nothing_behind(self, home: Home) -> None:
        token = home.token("ward-4")
        used = Token(token.federation, "ward-5", "client", token.secret, token.server, token.urls)
        with pytest.raises(RefusedError, match="not good for ward-5"):
            enrol(home.path / "ward-5", used, home.way)
        assert not (home.path / "ward-5").exists()

    @pytest.mark.parametrize("code", ["too-many", "bad-token", "storage"])
    def test_an_enrolment_that_may_have_taken_effect_keeps_its_key(
        self, home: Home, code: str
    ) -> None:
        token = home.token("ward-4")
        home.way.lost = ["", "after"]
        with pytest.raises(CarrierError):
            enrol(home.path / "ward-4", token, home.way)
        home.way.change["enrol"] = _refusing(code)
        with pytest.raises(RefusedError):
            enrol(home.path / "ward-4", token, home.way)
        home.way.change.clear()
        with enrol(home.path / "ward-4", token, home.way) as store:
            assert home.agent_of(store).sync().status == "active"

    def test_an_enrolment_that_took_effect_is_not_thrown_away_when_a_later_question_is_refused(
        self, home: Home
    ) -> None:
        token = home.token("ward-4")
        passing: list[str] = []

        def refuse_later(data: bytes) -> bytes:
            passing.append("federation")
            return data if len(passing) == 1 else _refusing("bad-token")(data)

        home.way.change["federation"] = refuse_later
        with pytest.raises(RefusedError):
            enrol(home.path / "ward-4", token, home.way)
        home.way.change.clear()
        with enrol(home.path / "ward-4", token, home.way) as store:
            assert home.federation.service.state.actor("ward-4").public_key == store.key.public

    def test_a_server_that_is_busy_does_not_cost_the_key(self, home: Home) -> None:
        token = home.token("ward-4")
        home.way.change["enrol"] = _refusing("too-many")
        with pytest.raises(RefusedError):
            enrol(home.path / "ward-4", token, home.way)
        assert (home.path / "ward-4" / "client.key").exists()

    def test_tokens_that_do_not_fit(self, home: Home) -> None:
        with pytest.raises(ProtocolError, match="for an officer"):
            enrol(home.path / "x", home.token("eve", "officer"), home.way)
        with pytest.raises(EvidenceError, match="not the given key"):
            enrol(home.path / "x", home.token("eve", server=make_key().public), home.way)
        with pytest.raises(BackboneError, match="pins the backbone ''"):
            enrol(home.path / "x", home.token("eve"), home.way, backbone="sha256:1")
        assert not (home.path / "x").exists()

    def test_a_token_of_another_federation(self, home: Home) -> None:
        token = home.token("ward-4")
        other = Token("f" * 32, "ward-4", "client", token.secret, token.server, token.urls)
        with pytest.raises(EvidenceError, match=f"the token is for {'f' * 32}"):
            enrol(home.path / "ward-4", other, home.way)

    @pytest.mark.parametrize("wrong", ["key", "name"])
    def test_an_enrolment_that_the_server_did_not_sign_is_not_believed(
        self, home: Home, wrong: str
    ) -> None:
        def changed(data: bytes) -> bytes:
            content = Envelope.from_bytes(data, "enrolled").unverified()
            key = make_key() if wrong == "key" else home.federation.server_key
            return Envelope.signed(
                "enrolled", content | ({"name": "eve"} if wrong == "name" else {}), key
            ).to_bytes()

        home.way.change["enrol"] = changed
        with pytest.raises(
            EvidenceError,
            match="is signed by key" if wrong == "key" else "the server enrolled 'eve'",
        ):
            enrol(home.path / "ward-4", home.token("ward-4"), home.way)
        with ClientStore.open(home.path / "ward-4") as store:
            assert not store.status().enrolled

    def test_after_the_server_changed_its_key(self, home: Home) -> None:
        token = home.token("ward-4")
        home.federation.operator.command("rotate-key")
        with enrol(home.path / "ward-4", token, home.way) as store:
            assert store.server == home.federation.first_key.public
            assert len(store.documents("rotation")) == 1
