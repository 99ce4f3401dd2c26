"""Clients at hand, synced together: under secure aggregation a round is complete only when its clients have taken turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from expunge.client import Synced

STILL = 8.0  # seconds without any change after which a round waits for clients that are not at hand: more than it gathers for
_PAUSE = 0.1


def sync_together(
    syncs: Mapping[str, Callable[[], Synced]],
    *,
    still: float = STILL,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Synced]:
    """Let each client sync, again and again while rounds go on; what each has done, and what it waits for, if for anything.

    Law: where nobody has to wait, each syncs once.
    """
    done = {name: sync() for name, sync in syncs.items()}
    changed = clock()
    while any(one.waiting for one in done.values()) and clock() - changed < still:
        again = {name: sync() for name, sync in syncs.items()}
        if any(one.receipts or one.audits or one.waiting != done[name].waiting for name, one in again.items()):
            changed = clock()
        else:
            sleep(_PAUSE)
        done = {name: done[name].followed_by(one) for name, one in again.items()}
    return done
