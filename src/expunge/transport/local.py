"""The local carrier: the whole server in this process, with its folder, signatures and bytes.

`expunge.federation` uses it. Nothing is skipped: what a client offers is encoded, signed,
journalled, logged and receipted as over a network, and `expunge serve` can serve the folder
afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from expunge._lazy import public_dir
from expunge.server.service import Service

__all__ = ["LocalCarrier"]
__dir__ = public_dir(__name__)


class LocalCarrier(Service):
    """A server in this process, as a carrier; use `open`.

    Only one process at a time can have a server's folder open. `close` it when done; a crash loses
    nothing.

    Parameters
    ----------
    folder : ServerFolder
        The opened folder of the server.
    settings : Settings
        The operator's choices (`expunge.server.state.Settings`).
    clock : callable
        Returns the time in seconds since 1970.
    report : callable
        Called with a text and an exception or None when something fails in the background.
    upkeep : bool
        Whether a background thread erases at rest in time and finishes audits.
    threads : bool, default True
        Whether other threads do what can be done beside the callers; without them, calls must come
        one after another.
    seconds : callable, default time.monotonic
        Returns the seconds of a clock for durations.
    schedule : callable or None, default None
        Returns the time by which rounds on a schedule begin; None for `clock`.
    progress : callable
        Called as the journal is read: with how many entries were, and of how many.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge import Spec
    >>> from expunge.crypto import Envelope
    >>> from expunge.federation import Federation
    >>> from expunge.transport.local import LocalCarrier
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> Federation.found(f"{folder.name}/federation", spec).close()
    >>> carrier = LocalCarrier.open(Path(folder.name) / "federation" / "server")
    >>> carrier.status()["samples"]
    0
    >>> Envelope.from_bytes(carrier.checkpoint(), "checkpoint").unverified()["size"]
    2
    >>> carrier.close()
    >>> folder.cleanup()
    """

    @classmethod
    def open(cls, path: Path, *, timeout: float = 10.0, **options: Any) -> Self:
        """Open the server in a folder; wait for another process that is about to release it.

        Parameters
        ----------
        path : Path
            The server's folder (`server` in the folder of a federation).
        timeout : float, default 10.0
            Seconds to wait for another process that has the folder open.
        **options
            As for `expunge.server.service.Service.open`: `settings`, `mirrors`, `clock`, `seconds`,
            `schedule`, `report`, `hook`, `upkeep`, `threads`, `storage`.

        Returns
        -------
        LocalCarrier
            The server, as it was left.

        Raises
        ------
        StoreBusyError
            Another process still has the folder open.
        StoreError
            There is no server in the folder, or it is damaged.
        """
        return super().open(path, timeout=timeout, **options)

    def close(self, *, fold: bool = True) -> None:
        """Finish what has begun and release the folder.

        Parameters
        ----------
        fold : bool, default True
            Whether to finish audits that all clients have answered, and to erase at rest what has
            been folded into the ledger.
        """
        super().close(fold=fold)
