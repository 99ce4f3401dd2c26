"""The golden vectors are what the code makes, and what they show can be read back."""

from __future__ import annotations

import json

import pytest

from expunge import Statistics
from expunge.evidence import Receipt
from expunge.protocol import messages, request, speech
from expunge.protocol.token import Token
from expunge.signing import Envelope
from golden import CLIENT, FOLDER, MAKERS, SERVER, SPEC, text


@pytest.mark.parametrize("name", MAKERS)
def test_the_file_is_what_the_code_makes(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text(name), "renew with: python tests/golden.py"


def vector(name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def test_there_are_no_other_files() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(MAKERS)


@pytest.mark.parametrize("name", ["rows", "gram", "none"])
def test_requests_can_be_read(name: str) -> None:
    data = bytes.fromhex(vector("requests")[name]["request"])  # type: ignore[index]
    found = request.read(data)
    found.verify(CLIENT.public)
    header = found.header
    message = messages.read(SPEC, header.message, header.added, header.deleted, found.message)
    assert (message.added is None, message.deleted is None) == (header.added == 0, header.deleted == 0)


def test_statistics_can_be_read() -> None:
    content = vector("statistics")
    assert Statistics.from_bytes(SPEC, bytes.fromhex(str(content["statistics"]))).digest == content["digest"]


def test_what_is_said_can_be_heard() -> None:
    content = vector("envelopes")
    for kind in ("enrolment", "question", "command"):
        speech.heard(kind, str(content[kind]).encode(), CLIENT.public)
    assert Token.from_text(str(content["token"])).secret_digest == content["token_secret_digest"]


def test_the_receipt_holds() -> None:
    receipt = Receipt.read(Envelope.from_bytes(str(vector("evidence")["receipt"]).encode(), "receipt"), SERVER.public)
    assert (receipt.client, receipt.sequence, receipt.logged.index) == ("hospital-a", 1, 1)
