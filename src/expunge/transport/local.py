"""The local carrier: the whole service in this process, with its folder, signatures and bytes.

The embedded default. Nothing is skipped: what a client offers is encoded, signed, journalled,
logged and receipted as over a network, and the server's folder can be served by `expunge serve`
afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from expunge.server.service import Service


class LocalCarrier(Service):
    """The service, opened to be spoken to by this process alone; a service is a carrier."""

    @classmethod
    def open(cls, path: Path, *, timeout: float = 10.0, **options: Any) -> Self:
        """As `Service.open`, but patient with another process that is about to let go."""
        return super().open(path, timeout=timeout, **options)

    def close(self, *, fold: bool = True) -> None:
        """Let go of the folder, after erasing at rest."""
        super().close(fold=fold)
