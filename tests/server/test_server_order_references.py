"""The case reference of an erasure order: kept for officers, told to nobody else, and there after
closing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from expunge.crypto import Envelope
from expunge.errors import RefusedError
from expunge.evidence import Bundle, read_bundle, render_bundle
from expunge.server.storage.schema import MIGRATIONS
from expunge.storage.sqlite import Database
from support.federation import Clock, Federation

REFERENCE = "DPO-2026/0815"
_ADDS_REFERENCES = next(
    number for number, script in enumerate(MIGRATIONS) if "ADD COLUMN reference" in script
)


@pytest.fixture
def federation(tmp_path: Path):
    with Federation(tmp_path / "server", clock=Clock()) as federation:
        federation.enrol("clinic").send(federation.draw(2))
        yield federation


def test_a_reference_is_shown_to_officers_in_the_bundle_and_after_closing(
    federation: Federation,
) -> None:
    officer, client = federation.officer(), federation.clients["clinic"]
    filed = officer.command("order", subject="ada", reference=REFERENCE)
    order = filed["order"]
    assert filed["reference"] == REFERENCE
    assert officer.command("order", subject="bob")["reference"] == ""
    assert [one["reference"] for one in officer.ask("orders")] in ([REFERENCE, ""], ["", REFERENCE])
    (told,) = [one for one in client.sync()["orders"] if one["order"] == order]
    assert set(told) == {"deadline", "order", "subject"}
    federation.operator.command("forget-client", client="clinic")
    data = render_bundle(Envelope.from_json(officer.ask("bundle", order=order), "bundle"))
    assert Bundle.read(read_bundle(data), federation.first_key.public).order.reference == REFERENCE
    assert REFERENCE.encode() in data
    officer.command("close-order", order=order)
    federation.reopen()
    assert officer.ask("show-order", order=order)["reference"] == REFERENCE


def test_the_public_log_does_not_tell_it(federation: Federation) -> None:
    federation.officer().command("order", subject="ada", reference=REFERENCE)
    assert REFERENCE not in json.dumps(federation.entries())


@pytest.mark.parametrize("reference", [None, 7, ["x"], "x" * 201])
def test_a_reference_that_cannot_be_is_refused_and_nothing_changes(
    federation: Federation, reference: Any
) -> None:
    officer = federation.officer()
    before = federation.dump()
    with pytest.raises(RefusedError, match="at most 200 characters") as refusal:
        officer.command("order", subject="ada", reference=reference)
    assert refusal.value.code == "malformed"
    assert federation.dump() == before
    assert officer.command("order", subject="ada", reference="x" * 200)["reference"] == "x" * 200


def test_orders_of_an_earlier_version_have_none(tmp_path: Path) -> None:
    old = Database(tmp_path / "server.db", MIGRATIONS[:_ADDS_REFERENCES])
    with old.transaction() as changes:
        changes.run("INSERT INTO orders (id, filed, deadline) VALUES ('0f', 1, 2)")
    old.close()
    new = Database(tmp_path / "server.db", MIGRATIONS)
    assert new.rows("SELECT id, filed, deadline, reference FROM orders") == [("0f", 1, 2, "")]
    new.close()
