"""How something is refused: with a code, and with no trace."""

from __future__ import annotations

from typing import Any

import pytest

from expunge.errors import RefusedError
from support.federation import Federation


def refused(
    federation: Federation, code: str, ask: Any, *arguments: Any, **named: Any
) -> RefusedError:
    """The refusal, with this code, of something that must change nothing at all."""
    before = federation.dump()
    with pytest.raises(RefusedError) as refusal:
        ask(*arguments, **named)
    assert refusal.value.code == code, refusal.value
    assert federation.dump() == before
    return refusal.value
