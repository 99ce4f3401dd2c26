"""One seed for whatever tests draw: the environment variable EXPUNGE_SEED.

Unset, every run draws the same: examples, stories, surroundings, order. A number is the seed of all
of them, so it replays a run. `random` draws a fresh number, which the run shows; it stands in the
environment from then on, for processes that the run starts.

Law: what a test draws follows from the seed and the test's name, whatever runs before it. Beyond
that are threads, kills, the clock, and the keys of TLS certificates.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "EXPUNGE_SEED"
FRESH = "random"
_FIXED = 0
_MOST = 1 << 32

_source = random.Random(_FIXED)  # noqa: S311 - in tests, keys and nonces must be repeatable


def settle() -> None:
    """Draw the seed if a fresh one is asked for; ValueError if something else is."""
    text = os.environ.get(VARIABLE, "")
    if text == FRESH:
        os.environ[VARIABLE] = str(fresh())
    elif text and not (text.isascii() and text.isdigit() and int(text) < _MOST):
        raise ValueError(f"{VARIABLE} must be a number below 2^32, or {FRESH!r}, got {text!r:.40}")


def fresh() -> int:
    """A number that nobody knows beforehand."""
    return random.SystemRandom().randrange(_MOST)


def given() -> int | None:
    """The number in the variable; None if it is unset."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text else None


def seed() -> int:
    """The seed of this run."""
    number = given()
    return _FIXED if number is None else number


def chance(*names: object) -> random.Random:
    """The seed's own draws for what is named so."""
    return random.Random(" ".join(map(str, (seed(), *names))))  # noqa: S311 - no secret


def begin(name: str) -> None:
    """From here on, `secrets` draws what the seed has for this name."""
    _source.seed(f"{seed()} {name}")


@contextmanager
def apart(name: str) -> Iterator[None]:
    """Meanwhile `secrets` draws what the seed has for this name: for what several tests share,
    whichever of them comes first.
    """
    before = _source.getstate()
    begin(name)
    try:
        yield
    finally:
        _source.setstate(before)


def rule_secrets() -> None:
    """Have `secrets` draw from the seed, in this process."""
    secrets.token_bytes = _token_bytes  # of which token_hex and token_urlsafe are made
    secrets.randbelow = _source.randrange
    secrets.choice = _source.choice


def _token_bytes(nbytes: int | None = None) -> bytes:
    return _source.randbytes(secrets.DEFAULT_ENTROPY if nbytes is None else nbytes)
