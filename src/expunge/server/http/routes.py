"""The routes of docs/protocol.md, and those for the operator."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from expunge.server.http import metrics as exposition
from expunge.server.http.bodies import Receive
from expunge.server.http.gateway import Gateway, Headers
from expunge.server.http.logs import Note
from expunge.server.http.openapi import (
    JSON,
    SIGNED,
    Live,
    Ready,
    envelope_body,
    refusals,
    request_body,
    signed,
    with_timing,
)

router = APIRouter()
HEAD_TYPE = "application/vnd.expunge.published.v1"
_NO_STORE = {"cache-control": "no-store"}
_MOST = (1 << 53) - 1  # as everywhere in the protocol's JSON

Place = Annotated[int, Query(ge=0, le=_MOST)]

_NONCE = "64 hexadecimal digits"
_FEDERATION = "32 hexadecimal digits"


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _incoming(request: Request) -> tuple[Note, Headers, Receive]:
    """What the gateway takes of a request: the note of its log line, its headers, and its body as
    it comes.
    """
    note: Note = request.state.note
    return note, request.scope["headers"], request.receive


def _envelope(data: bytes) -> Response:
    return Response(data, media_type=JSON, headers=_NO_STORE)


# -- actors; the most frequent first, since routes are tried in this order -------------------------


actors = APIRouter(tags=["actors"], default_response_class=Response)


@actors.post(
    "/v1/requests",
    summary="Add or delete samples, answer orders and audits, or leave",
    operation_id="request",
    responses={
        **with_timing(
            signed(
                "receipt",
                (
                    "What took effect, when it will be erased at rest, and where the audit log "
                    "says so."
                ),
            )
        ),
        **refusals(
            *SIGNED,
            "too-large",
            "wrong-spec",
            "sequence-gap",
            "sequence-reused",
            "wrong-counts",
            "not-live",
            "already-live",
            "not-opened",
            "impossible",
            "unknown-order",
            "unknown-audit",
            "must-rejoin",
            "gone",
            "no-room",
        ),
    },
    openapi_extra=request_body(),
)
async def offer(request: Request) -> Response:
    """Applied exactly once, by client and sequence number.

    The same request again is answered by the same receipt, so it may be offered until an answer
    comes. Requests that arrive together are applied in one round.
    """
    answer, seconds = await _gateway(request).request(*_incoming(request))
    timing = ", ".join(f"{phase};dur={1000.0 * value:.3f}" for phase, value in seconds.items())
    return Response(answer, media_type=JSON, headers={**_NO_STORE, "server-timing": timing})


@actors.post(
    "/v1/aggregations",
    summary="Take a turn in a round of secure aggregation",
    operation_id="aggregate",
    responses={
        **signed(
            "standing",
            "How the round stands for this client, and what it needs to know for its next turn.",
        ),
        **refusals(
            *SIGNED,
            "too-large",
            "wrong-spec",
            "wrong-round",
            "wrong-phase",
            "wrong-share",
            "sequence-gap",
            "sequence-reused",
            "must-rejoin",
            "gone",
        ),
    },
    openapi_extra=request_body(),
)
async def aggregate(request: Request) -> Response:
    """What a client says in a phase of a round, or an envelope `turn`, which only asks and may wait
    for a change.

    The same message again changes nothing, and is answered by how the round stands then.
    """
    return _envelope(await _gateway(request).aggregate(*_incoming(request)))


@actors.post(
    "/v1/sync",
    summary="Ask what is new",
    operation_id="sync",
    responses={
        **signed(
            "answer",
            "Standing, spec, amendments, open orders and audits, checkpoint and consistency proof.",
        ),
        **refusals(*SIGNED, "too-large"),
    },
    openapi_extra=envelope_body(
        "question",
        {
            "actor": "hospital-a",
            "federation": _FEDERATION,
            "nonce": _NONCE,
            "sequence": 7,
            "size": 41,
        },
    ),
)
async def sync(request: Request) -> Response:
    """Changes nothing.

    The answer carries the question's nonce, and proves that the log continues what was seen before.
    """
    return _envelope(await _gateway(request).sync(*_incoming(request)))


@actors.post(
    "/v1/commands",
    summary="Command or ask, as an operator or officer",
    operation_id="command",
    responses={
        **signed("result", "The action's result; for a command also its place in the audit log."),
        **refusals(
            *SIGNED,
            "too-large",
            "sequence-gap",
            "sequence-reused",
            "unknown-action",
            "unknown-order",
            "unknown-audit",
            "name-taken",
            "gone",
            "unsolvable",
            "not-found",
            "no-room",
        ),
    },
    openapi_extra=envelope_body(
        "command",
        {
            "action": "status",
            "actor": "operator",
            "arguments": {},
            "federation": _FEDERATION,
            "nonce": _NONCE,
            "sequence": 0,
        },
    ),
)
async def command(request: Request) -> Response:
    """With the actor's next sequence number a command, applied exactly once; with sequence 0 a
    question, which changes nothing.

    Which actions there are stands in docs/protocol.md.
    """
    return _envelope(await _gateway(request).command(*_incoming(request)))


@actors.post(
    "/v1/enrolments",
    summary="Enrol by a one-time token",
    operation_id="enrol",
    responses={
        **signed("enrolled", "Name, role and spec."),
        **refusals(
            "bad-token",
            "name-taken",
            "bad-signature",
            "wrong-federation",
            "wrong-spec",
            "too-large",
        ),
    },
    openapi_extra=envelope_body(
        "enrolment",
        {
            "federation": _FEDERATION,
            "key": "base64",
            "name": "hospital-a",
            "spec": "digest of the data spec",
            "token": "secret",
        },
    ),
)
async def enrol(request: Request) -> Response:
    """The same enrolment (same name, key and token) again is answered again."""
    return _envelope(await _gateway(request).enrol(*_incoming(request)))


router.include_router(actors)


# -- evidence, for anyone --------------------------------------------------------------------------


@router.get(
    "/v1/federation",
    summary="Spec, limits, server key and its rotations",
    operation_id="federation",
    tags=["evidence"],
    response_class=Response,
    responses={**signed("federation", "What a party must know to take part."), **refusals()},
)
async def federation(request: Request) -> Response:
    """What a party must know to take part."""
    gateway = _gateway(request)
    return _envelope(await gateway.fetch(gateway.service.federation))


_HEAD_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The published head.",
        "content": {HEAD_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            "ETag": {
                "description": 'W/"SHA-256 of the head, in hexadecimal"',
                "schema": {"type": "string"},
            }
        },
    },
    304: {"description": "`If-None-Match` names the digest of the current head."},
    **refusals("unsolvable"),
}


@router.get(
    "/v1/head",
    summary="The current head with its certificate",
    operation_id="head",
    tags=["evidence"],
    response_class=Response,
    responses=_HEAD_RESPONSES,
)
async def head(request: Request) -> Response:
    """The file of docs/formats.md: certificate and weights.

    `ETag` is the head's digest. It is a weak one, since the certificate may be newer while the head
    is the same.
    """
    data, digest = await _gateway(request).head(_tags(request.headers.getlist("if-none-match")))
    headers = {"etag": f'W/"{digest}"', "cache-control": "no-cache"}
    if data is None:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=HEAD_TYPE, headers=headers)


@router.head(
    "/v1/head",
    summary="The digest of the current head",
    operation_id="head_digest",
    tags=["evidence"],
    response_class=Response,
    responses={
        200: {"description": "There is a head.", "headers": _HEAD_RESPONSES[200]["headers"]},
        304: _HEAD_RESPONSES[304],
    },
)
async def head_digest(request: Request) -> Response:
    """As GET, without the body."""
    return await head(request)


def _tags(values: list[str]) -> frozenset[str]:
    """The digests that `If-None-Match` names."""
    pieces = [piece.strip() for value in values for piece in value.split(",")]
    return frozenset(piece.removeprefix("W/").strip('"') for piece in pieces if piece)


@router.get(
    "/v1/checkpoint",
    summary="Size and root of the audit log",
    operation_id="checkpoint",
    tags=["evidence"],
    response_class=Response,
    responses={**signed("checkpoint", "What the log is now."), **refusals()},
)
async def checkpoint(request: Request) -> Response:
    """What can be compared with what others have seen."""
    gateway = _gateway(request)
    return _envelope(await gateway.fetch(gateway.service.checkpoint))


@router.get(
    "/v1/log/entries",
    summary="Entries of the audit log",
    operation_id="log_entries",
    tags=["evidence"],
    response_model=list[str],
    response_description="The canonical bytes of each entry, in base64.",
    responses=refusals("not-found"),
)
async def entries(request: Request, start: Place, end: Place) -> Response:
    """From `start` up to, not including, `end`.

    At most a thousand come at a time, so there may be fewer than were asked for.
    """
    service = _gateway(request).service
    log_entries = await _gateway(request).fetch(lambda: service.entries(start, end))
    return _list([base64.b64encode(entry).decode("ascii") for entry in log_entries])


@router.get(
    "/v1/log/inclusion",
    summary="Proof that an entry is in the log",
    operation_id="log_inclusion",
    tags=["evidence"],
    response_model=list[str],
    response_description="The hashes of the path, in hexadecimal.",
    responses=refusals("not-found"),
)
async def inclusion(request: Request, index: Place, size: Place) -> Response:
    """RFC 9162: the audit path of entry `index` in the tree of `size` entries."""
    service = _gateway(request).service
    return _list(
        [
            digest.hex()
            for digest in await _gateway(request).fetch(lambda: service.inclusion(index, size))
        ]
    )


@router.get(
    "/v1/log/consistency",
    summary="Proof that the log only grew",
    operation_id="log_consistency",
    tags=["evidence"],
    response_model=list[str],
    response_description="The hashes of the proof, in hexadecimal.",
    responses=refusals("not-found"),
)
async def consistency(request: Request, first: Place, second: Place) -> Response:
    """RFC 9162: that the tree of `second` entries continues the one of `first`."""
    service = _gateway(request).service
    return _list(
        [
            digest.hex()
            for digest in await _gateway(request).fetch(lambda: service.consistency(first, second))
        ]
    )


def _list(texts: list[str]) -> Response:
    return Response(json.dumps(texts), media_type=JSON, headers=_NO_STORE)


# -- for the operator ------------------------------------------------------------------------------


@router.get(
    "/healthz",
    summary="Whether the process is alive",
    operation_id="healthz",
    tags=["operation"],
    response_model=Live,
    response_description="It is.",
)
async def healthz() -> Response:
    """Says nothing about the store: see /readyz."""
    return Response(b'{"live":true}', media_type=JSON, headers=_NO_STORE)


@router.get(
    "/readyz",
    summary="Whether the store takes everything",
    operation_id="readyz",
    tags=["operation"],
    response_model=Ready,
    response_description="It does.",
    responses={503: {"model": Ready, "description": "It does not: send no requests here."}},
)
async def readyz(request: Request) -> Response:
    """Not if it does not answer, its disk is full or its file system is read-only; then `reason`
    says what to do. A federation without a head (there may be too few samples) is ready; `reason`
    says why there is none.
    """
    ready, reason = await _gateway(request).readiness()
    content = json.dumps({"ready": ready, "reason": reason})
    return Response(content, 200 if ready else 503, media_type=JSON, headers=_NO_STORE)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    operation_id="metrics",
    tags=["operation"],
    response_class=Response,
    responses={
        200: {
            "description": "The text format, version 0.0.4.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **{status: refusals()[status] for status in (429,)},
    },
)
async def metrics(request: Request) -> Response:
    """Counts and times. Nothing in them is personal, but keep them to yourself all the same."""
    gateway = _gateway(request)
    return Response(
        await gateway.fetch(gateway.metrics.text),
        media_type=exposition.MEDIA_TYPE,
        headers=_NO_STORE,
    )
