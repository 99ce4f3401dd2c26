"""The certificate of the current head."""

from __future__ import annotations

from expunge.errors import RefusedError
from expunge.evidence.certificate import certificate_content
from expunge.evidence.checkpoint import Checkpoint
from expunge.server.audits import Audits
from expunge.server.core import Core
from expunge.signing import Envelope

_DEVIATION = "float64 arithmetic: the head agrees with retraining up to rounding errors, which nobody bounded or measured"


def certificate(core: Core, audits: Audits, checkpoint: Checkpoint) -> Envelope:
    """What the current head promises, at a checkpoint of the log; refused while there is no head."""
    if core.head is None:
        raise RefusedError("unsolvable", f"there is no head to publish: {core.headless}")
    content = certificate_content(
        server=core.server_id,
        time=checkpoint.time,
        spec=core.spec,
        head=core.head.digest,
        bound=core.head.error_bound if core.spec.is_exact else None,
        deviation="" if core.spec.is_exact else _DEVIATION,
        solver=core.solver_name,
        count=core.books.solver.count,
        clients=len(core.clients("active")),
        ledger=core.state("ledger_digest"),
        checkpoint=checkpoint,
        audit=audits.last(),
    )
    return core.sign("certificate", content)
