"""Only the server's own word is believed: what is altered, forged, withheld or of another log is
refused.
"""

from __future__ import annotations

import pytest

from expunge.client import Selection
from expunge.crypto import Envelope, canonical
from expunge.errors import (
    EvidenceError,
    FormatError,
)
from support.agents import Home, add
from support.federation import SPEC, make_key


class TestBelief:
    """A server, or whoever is in between, that does not tell the truth."""

    def test_an_altered_receipt_is_not_believed(self, home: Home) -> None:
        add(home.store)
        home.way.change["request"] = lambda data: data.replace(b"e", b"f", 1)
        with pytest.raises((EvidenceError, FormatError)):
            home.agent.push()
        assert home.store.status().composed == 1
        home.way.change.clear()
        assert len(home.agent.push()) == 1

    def test_a_receipt_of_another_server_is_not_believed(self, home: Home) -> None:
        add(home.store)
        stranger = make_key()

        def resigned(data: bytes) -> bytes:
            return Envelope.signed(
                "receipt", Envelope.from_bytes(data, "receipt").unverified(), stranger
            ).to_bytes()

        home.way.change["request"] = resigned
        with pytest.raises(EvidenceError, match="not the given key"):
            home.agent.push()

    @pytest.mark.parametrize(
        "field", ["request", "added", "deleted", "added_commitments", "message", "leave", "orders"]
    )
    def test_a_receipt_for_another_request_is_not_believed(self, home: Home, field: str) -> None:
        """The server signs and logs something else than what was asked."""
        add(home.store)
        wrong = {
            "request": "0" * 64,
            "added": 3,
            "deleted": 1,
            "added_commitments": "0" * 64,
            "message": "none",
            "leave": True,
        }
        value = wrong.get(field, [{"order": "ab" * 16, "found": 0}])
        state = home.federation.service.state
        append = state.append
        state.append = lambda kind, now, **content: append(  # type: ignore[method-assign]
            kind, now, **(content | {field: value} if kind == "changed" else content)
        )
        with pytest.raises(EvidenceError, match=f"not for the request that was made: {field}"):
            home.agent.push()
        assert home.store.status().composed == 1

    def test_a_log_that_was_rewritten_is_seen(self, home: Home) -> None:
        add(home.store)
        home.agent.push()
        add(home.store, 1, "more")
        home.way.change["consistency"] = lambda proof: [b"\0" * 32, *proof[1:]]
        with pytest.raises(EvidenceError, match="does not continue"):
            home.agent.push()
        with pytest.raises(EvidenceError):
            home.agent.push()
        home.way.change.clear()
        assert len(home.agent.push()) == 1

    def test_a_log_that_lost_entries_is_seen(self, home: Home) -> None:
        home.agent.sync()
        size, root = home.store.checkpoint
        home.store.remember(
            {"checkpoint": canonical.encode({"root": root.hex(), "size": size + 5}).decode()}
        )
        with pytest.raises(EvidenceError, match="entries are gone"):
            home.agent.sync()

    def test_an_answer_to_another_question_is_not_believed(self, home: Home) -> None:
        kept: list[bytes] = []
        home.way.change["sync"] = lambda data: kept.append(data) or kept[0]  # type: ignore[func-returns-value]
        home.agent.sync()
        with pytest.raises(EvidenceError, match="another question"):
            home.agent.sync()

    def test_an_answer_that_the_server_did_not_sign_is_not_believed(self, home: Home) -> None:
        def changed(data: bytes) -> bytes:
            envelope = Envelope.from_bytes(data, "answer")
            forged = canonical.encode(envelope.unverified() | {"status": "gone"})
            return Envelope("answer", forged, envelope.signatures).to_bytes()

        home.way.change["sync"] = changed
        with pytest.raises(EvidenceError, match="altered"):
            home.agent.sync()
        assert home.store.recall("gone") is None

    def test_a_head_that_was_altered_is_not_taken(self, home: Home) -> None:
        add(home.store)
        home.way.change["head"] = lambda data: data[:-1] + bytes([data[-1] ^ 1])
        with pytest.raises(EvidenceError, match="digest"):
            home.agent.sync()
        assert home.store.head() is None

    def test_a_head_from_before_the_deletion_is_not_taken(self, home: Home) -> None:
        add(home.store)
        home.agent.sync()
        old = home.store.head()
        home.store.forget(Selection(ids=["sample-0"]))
        home.way.change["head"] = lambda _: old
        with pytest.raises(EvidenceError, match="holds back the head"):
            home.agent.sync()

    def test_a_rotation_that_is_kept_back_is_seen(self, home: Home) -> None:
        home.federation.operator.command("rotate-key")
        home.agent.sync()
        home.federation.service.state.storage.database.rows("DELETE FROM rotations")
        with pytest.raises(EvidenceError, match="no longer shows a rotation"):
            home.agent.sync()

    def test_a_spec_without_signed_amendments_is_not_taken_on(self, home: Home) -> None:
        home.federation.operator.command("amend", gamma=(2.0).hex())
        home.federation.service.state.storage.database.rows("DELETE FROM amendments")
        with pytest.raises(EvidenceError, match="signed amendments"):
            home.agent.sync()
        assert home.store.spec == SPEC

    def test_an_amendment_that_is_kept_back_is_seen(self, home: Home) -> None:
        for gamma in (2.0, 4.0, 8.0):
            home.federation.operator.command("amend", gamma=gamma.hex())
        home.federation.service.state.storage.database.rows(
            "DELETE FROM amendments WHERE number = 2"
        )
        with pytest.raises(EvidenceError, match="signed amendments"):
            home.agent.sync()
