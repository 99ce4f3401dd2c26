"""The description of the routes: complete, and the one in docs/openapi.json."""

from __future__ import annotations

import json
from pathlib import Path

from expunge.server.http.app import RENEW, make_app, text

FILE = Path(__file__).parents[3] / "docs" / "openapi.json"


def test_the_file_is_what_the_application_says() -> None:
    assert FILE.read_text() == text(), f"docs/openapi.json is not current: run {RENEW}"


def test_every_operation_is_described() -> None:
    described = make_app().openapi()
    operations = {
        (path, method): one
        for path, methods in described["paths"].items()
        for method, one in methods.items()
    }
    assert {path for path, _ in operations} == {
        "/v1/enrolments",
        "/v1/requests",
        "/v1/sync",
        "/v1/aggregations",
        "/v1/commands",
        "/v1/federation",
        "/v1/head",
        "/v1/checkpoint",
        "/v1/log/entries",
        "/v1/log/inclusion",
        "/v1/log/consistency",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    for (path, method), operation in operations.items():
        for needed in ("summary", "description", "operationId", "tags", "responses"):
            assert operation.get(needed), (path, method, needed)
        assert ("requestBody" in operation) == (method == "post")
        assert "HTTPValidationError" not in json.dumps(operation), (path, method)
        for status, response in operation["responses"].items():
            assert response["description"]
            if status not in ("304",) and method != "head":
                assert response.get("content"), (path, status)
            if int(status) >= 400 and path != "/readyz":
                assert response["content"]["application/json"]["schema"] == {
                    "$ref": "#/components/schemas/Refusal"
                }
    schemas = described["components"]["schemas"]
    assert {"Refusal", "SignedEnvelope", "Signature", "Ready", "Live"} <= set(schemas)
    assert schemas["Refusal"]["examples"]
    assert schemas["SignedEnvelope"]["examples"]


def test_every_code_of_the_protocol_is_described_somewhere() -> None:
    protocol = (FILE.parent / "protocol.md").read_text()
    listed = protocol.partition("## Refusals")[2].partition("\n## ")[0]
    codes = {
        piece
        for piece in listed.split("`")[1::2]
        if piece.replace("-", "").isalpha() and piece.islower()
    }
    assert len(codes) > 20
    missing = {code for code in codes if f"`{code}`" not in text()}
    assert missing == set()
