"""Evidence that the server gathers: the bundle of one erasure order, from log, receipts and
certificate; and the certificate of the current head.
"""

from __future__ import annotations

from expunge.crypto import Envelope
from expunge.errors import RefusedError
from expunge.evidence.bundle import bundle_content
from expunge.evidence.certificate import certificate_content
from expunge.evidence.log import Checkpoint
from expunge.server.audits import Audits
from expunge.server.orders import Orders
from expunge.server.state import ServerState
from expunge.wire.schema import time_text

_DEVIATION = (
    "float64 arithmetic: the head agrees with retraining up to rounding errors, which "
    "nobody bounded or measured"
)


def certificate(state: ServerState, audits: Audits, checkpoint: Checkpoint) -> Envelope:
    """What the current head promises, at a checkpoint of the log; refused while there is no
    head.
    """
    if state.head is None:
        raise RefusedError("unsolvable", f"there is no head to publish: {state.headless}")
    content = certificate_content(
        server=state.server_id,
        time=checkpoint.time,
        spec=state.spec,
        head=state.head.digest,
        bound=state.head.error_bound if state.spec.is_exact else None,
        deviation="" if state.spec.is_exact else _DEVIATION,
        solver=state.solver_name,
        count=state.ledger.solver.count,
        clients=len(state.clients("active")),
        ledger=state.record.ledger_digest,
        binds=state.record.binds,
        checkpoint=checkpoint,
        audit=audits.last(),
    )
    return state.sign("certificate", content)


def bundle(state: ServerState, orders: Orders, audits: Audits, order: str) -> Envelope:
    """Everything an authority would ask for about an order, signed; complete or not."""
    with state.lock:
        now = state.now()
        checkpoint, content = state.checkpoint(now), orders.content(order)
        shown = orders.show(order, now)
        receipts, indices = [], set(orders.entries(order))
        for answer in shown["answers"]:
            receipt = _receipt(state, answer["client"], answer["sequence"])
            if receipt is None:
                indices |= _forgotten(state, answer["client"])
                continue
            receipts.append(receipt)
            logged = receipt.unverified()
            indices.add(logged["log"]["index"])
            indices |= _erasure(state, logged["entry"]["generation"])
        signed = certificate(state, audits, checkpoint) if state.head is not None else None
        if signed is not None and signed.unverified()["audit"] is not None:
            indices.add(signed.unverified()["audit"]["index"])
        entries = [state.logged(index, checkpoint) for index in sorted(indices)]
        return state.sign(
            "bundle",
            bundle_content(
                server=state.server_id,
                time=time_text(now),
                order=order,
                subject=content["subject"],
                subjects=content["subjects"],
                salt=bytes.fromhex(content["salt"]),
                reference=shown["reference"],
                receipts=receipts,
                entries=entries,
                certificate=signed,
                rotations=state.rotations(),
                checkpoint=checkpoint,
            ),
        )


def _receipt(state: ServerState, client: str, sequence: int) -> Envelope | None:
    record = state.answer_of(client, sequence)
    return None if record is None else Envelope.from_bytes(record.answer, "receipt")


def _erasure(state: ServerState, generation: int) -> set[int]:
    """Where the log says that a journal generation was erased, if it was."""
    erasure = state.storage.generations.erasure_of(generation)
    if erasure is None or erasure.position < 0:  # a restored server does not know
        return set()
    return {erasure.position}


def _forgotten(state: ServerState, client: str) -> set[int]:
    """Where the log says that a client was forgotten."""
    positions = state.storage.log.search({"kind": "forgotten", "client": client})
    if not positions:
        raise RefusedError("not-found", f"there is no receipt of {client}, nor was it forgotten")
    return {positions[-1]}
