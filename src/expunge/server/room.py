"""What the server does when its disk is full, or can only be read.

Law: additions are refused while the reserve is not whole or less is free beside it than a step of a
deletion may take; what frees room or must not wait (deletions, folds, commands, rounds) uses the
reserve then. A reserve that was used is made again as soon as there is room.
"""

from __future__ import annotations

from expunge.errors import RefusedError
from expunge.ridge.spec import Spec
from expunge.server.storage.folder import ServerFolder
from expunge.wire.messages import statistics_bytes

_STEP = 2 << 20  # bytes that a transaction may take, with the write-ahead log


class Room:
    """The room on the disk of the server's folder."""

    def __init__(self, folder: ServerFolder, spec: Spec, need: int) -> None:
        """`need` is how many bytes a step may take; 0 for what follows from the spec: a fold writes
        the ledger, and a client's share of it, before what they replace is removed.
        """
        self._reserve = folder.reserve
        self._reserve.need = need or _STEP + 2 * statistics_bytes(spec)
        self._reported = ""

    @property
    def free(self) -> int:
        """How many bytes are free."""
        return self._reserve.free

    @property
    def is_short(self) -> bool:
        """Whether additions are refused."""
        return self._reserve.is_short

    def problem(self) -> str:
        """Why the store cannot take everything, and what to do; empty if it can."""
        reserve = self._reserve
        if reserve.is_read_only:
            return (
                "the file system of the server's folder is mounted read-only: what is there is "
                "served, and nothing can be changed. Mount it for writing; the server goes on by "
                "itself"
            )
        if not reserve.is_short:
            return ""
        state = "is kept" if reserve.is_whole else "is in use"
        if reserve.failure:
            state = f"could not be made ({reserve.failure})"
        return (
            f"the server's disk is full: {reserve.free:,} bytes are free, and the reserve for "
            f"deletions {state}. Additions are refused; deletions, folds and commands go on as "
            f"long as there is room. Free {reserve.missing:,} bytes on it; the server goes on by "
            "itself"
        )

    def look(self) -> str:
        """Make the reserve again if there is room; what is to be reported, if that is another
        problem than before, or none any more.
        """
        self._reserve.renew()
        problem = self.problem()
        before, self._reported = self._reported, problem.partition(":")[0]
        if before == self._reported:
            return ""
        return problem or "the disk has room again: additions are taken"

    def use(self) -> None:
        """Before what must not wait for room."""
        self._reserve.use()

    def require(self) -> None:
        """Refuse what adds to the store if the disk is full."""
        if self._reserve.is_short:
            raise RefusedError(
                "no-room",
                "the server's disk is full: it takes no additions until its operator has made "
                "room; deletions go on. Nothing was changed",
            )
