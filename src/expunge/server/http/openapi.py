"""What the description of the routes says of bodies: models, media types, examples, and which
refusals each route knows.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from expunge.errors import RefusalCode
from expunge.wire.refusals import codes_by_status

BINARY = "application/octet-stream"
JSON = "application/json"

_WHAT = {
    400: "The body or a parameter is not well formed.",
    403: "Not signed by an enrolled key, or not for this role.",
    404: "There is no such thing.",
    405: "The method is not for this path.",
    408: "The body did not arrive in time.",
    409: "Not the next sequence number, or a name or standing that forbids it.",
    410: "Gone.",
    413: "The body is too large; refused as soon as that is known.",
    422: "Understood, and refused for what it says.",
    426: "No version of the protocol in common; the reason says what to upgrade.",
    429: (
        "Too many requests, or no room for the body at present; `Retry-After` says when to come "
        "back."
    ),
    503: "The server cannot store or read at present, or is stopping; offer the same again later.",
    507: "The server's disk is full: it takes deletions, and no additions.",
}
ALWAYS: tuple[RefusalCode, ...] = ("malformed", "too-many", "storage", "wrong-protocol")
ANY_BODY: tuple[RefusalCode, ...] = ("too-large",)
SIGNED: tuple[RefusalCode, ...] = (
    "unknown-actor",
    "bad-signature",
    "wrong-federation",
    "not-allowed",
)


class Refusal(BaseModel):
    """A refusal: nothing has changed. `code` is for programs, `reason` for people."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "code": "sequence-gap",
                    "details": {"expected": 8},
                    "reason": "request number 9 was offered where number 8 is expected",
                }
            ]
        }
    )
    code: str = Field(description="One of the codes of docs/protocol.md.")
    reason: str = Field(description="What is wrong, with which thing, and what to do about it.")
    details: dict[str, Any] = Field(
        description='JSON values that belong to the code, such as `{"expected": 8}`.'
    )


class Signature(BaseModel):
    """A signature of an envelope."""

    keyid: str = Field(
        description="SHA-256 of the raw public key, in hexadecimal.", pattern="^[0-9a-f]{64}$"
    )
    sig: str = Field(description="Ed25519 over DSSE's pre-authentication encoding, in base64.")


class SignedEnvelope(BaseModel):
    """DSSE version 1, as canonical JSON: keys sorted, no spaces, ASCII only."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "payload": "eyJhY3RvciI6Imhvc3BpdGFsLWEifQ==",
                    "payloadType": "application/vnd.expunge.question.v1+json",
                    "signatures": [{"keyid": "9f" * 32, "sig": "A" * 86 + "=="}],
                }
            ]
        }
    )
    payload: str = Field(description="Canonical JSON, in base64.")
    payloadType: str = Field(description="`application/vnd.expunge.<kind>.v1+json`.")  # noqa: N815 - DSSE's name
    signatures: list[Signature]


class Live(BaseModel):
    """The process answers."""

    live: bool = Field(examples=[True])


class Ready(BaseModel):
    """Whether the store answers."""

    ready: bool = Field(examples=[True])
    reason: str = Field(
        description="Why not; or, while ready, why there is no head to publish. Otherwise empty.",
        examples=[""],
    )


def refusals(*codes: RefusalCode) -> dict[int | str, dict[str, Any]]:
    """The responses of a route for these codes, and for what can always happen."""
    responses: dict[int | str, dict[str, Any]] = {}
    for status, of_it in codes_by_status({*ALWAYS, *codes}).items():
        responses[status] = {
            "model": Refusal,
            "description": f"{_WHAT[status]} Codes: {', '.join(f'`{code}`' for code in of_it)}.",
        }
        if status in (429, 503):
            responses[status]["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
            }
    if ANY_BODY[0] in codes:
        responses[408] = {"model": Refusal, "description": f"{_WHAT[408]} Codes: `malformed`."}
    responses.setdefault(422, {"model": Refusal, "description": _WHAT[422]})
    return responses


def signed(kind: str, text: str) -> dict[int | str, dict[str, Any]]:
    """The response 200 of a route that answers with an envelope of this kind."""
    return {
        200: {
            "model": SignedEnvelope,
            "description": f"{text} An envelope of kind `{kind}`, signed by the server.",
        }
    }


def with_timing(responses: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """The same responses; the one with status 200 also says where the time went."""
    text = (
        "Milliseconds by phase, such as `checks;dur=0.4, wait;dur=0.0, solve;dur=5.1, "
        "write;dur=1.9`."
    )
    headers = {"Server-Timing": {"description": text, "schema": {"type": "string"}}}
    return {**responses, 200: {**responses[200], "headers": headers}}


def binary(text: str) -> dict[str, Any]:
    """A binary body."""
    return {
        "description": text,
        "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}},
    }


def envelope_body(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    """For `openapi_extra`: the body of a request is an envelope of this kind, whose payload looks
    like this.
    """
    schema = {"$ref": "#/components/schemas/SignedEnvelope"}
    text = f"An envelope of kind `{kind}`. Its payload, before it is encoded: `{_text(payload)}`"
    return {
        "requestBody": {
            "required": True,
            "description": text,
            "content": {JSON: {"schema": schema}},
        }
    }


def request_body() -> dict[str, Any]:
    """For `openapi_extra`: the body of a client's request."""
    text = (
        "Frame, header, signature, commitments and message, as docs/protocol.md says byte for "
        "byte. `Content-Length` is wanted: "
        "without it, room for the largest request allowed is waited for."
    )
    return {"requestBody": {"required": True, **binary(text)}}


def _text(payload: dict[str, Any]) -> str:
    return str(payload).replace("'", '"')
