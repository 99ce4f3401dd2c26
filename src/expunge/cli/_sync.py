"""One-time tokens, made by an operator's office.

Clients at hand, synced together: under secure aggregation a round is complete only when its clients
have taken turns.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping

from expunge.cli._connect import Reached
from expunge.cli._evidence import newest
from expunge.client import Synced
from expunge.wire.token import Token

# Seconds without any change after which a round waits for clients that are not at hand: more than
# it gathers for
STILL = 8.0
_PAUSE = 0.1


def sync_together(
    syncs: Mapping[str, Callable[[], Synced]],
    *,
    still: float = STILL,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Synced]:
    """Let each client sync, again and again while rounds go on; what each has done, and what it
    waits for, if for anything.

    Law: where nobody has to wait, each syncs once.
    """
    done = {name: sync() for name, sync in syncs.items()}
    changed = clock()
    while any(one.waiting for one in done.values()) and clock() - changed < still:
        again = {name: sync() for name, sync in syncs.items()}
        if any(
            one.receipts or one.audits or one.waiting != done[name].waiting
            for name, one in again.items()
        ):
            changed = clock()
        else:
            sleep(_PAUSE)
        done = {name: done[name].followed_by(one) for name, one in again.items()}
    return done


_SECRET_BYTES = 32


def new_token(
    reached: Reached, name: str, role: str, urls: tuple[str, ...], days: int = 7, *, ca: str = ""
) -> tuple[Token, str]:
    """A token that the server knows of, and when it expires; `ca` is its authority, where that is
    nearer than the office's.
    """
    office = reached.office
    made = Token(
        office.federation,
        name,
        role,
        secrets.token_hex(_SECRET_BYTES),
        newest(office.chain),
        urls,
        _ca(ca or office.ca, urls),
    )
    told = office.do(
        "token", {"name": name, "role": role, "secret": made.secret_digest, "days": days}
    )
    return made, str(told["expires"])


def _ca(known: str, urls: tuple[str, ...]) -> str:
    return known if any(url.startswith("https://") for url in urls) else ""
