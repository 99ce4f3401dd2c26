"""The modules whose `__all__` is public: docs/reference has them all."""

from __future__ import annotations

PUBLIC = (
    "expunge",
    "expunge.approximate",
    "expunge.backbones",
    "expunge.client",
    "expunge.crypto",
    "expunge.data",
    "expunge.errors",
    "expunge.evidence",
    "expunge.export",
    "expunge.federation",
    "expunge.office",
    "expunge.posterior",
    "expunge.transport.http",
    "expunge.transport.local",
    "expunge.wire.carrier",
    "expunge.wire.token",
)
