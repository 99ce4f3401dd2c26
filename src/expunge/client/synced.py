"""What a sync has done."""

from __future__ import annotations

from dataclasses import dataclass

from expunge.client.selection import Preview
from expunge.evidence import Receipt


@dataclass(frozen=True)
class Synced:
    """What a sync has done. `orders` are the erasure orders carried out, with what each found."""

    status: str
    receipts: tuple[Receipt, ...] = ()
    orders: tuple[tuple[str, Preview], ...] = ()
    audits: tuple[str, ...] = ()
    amended: bool = False
    head: str = ""
    new_head: bool = False
    rejoined: bool = False
