"""A whole federation in one folder and one process, for programs and the command line."""

from typing import TYPE_CHECKING

from expunge._lazy import lazy_names

if TYPE_CHECKING:
    from expunge.federation.embedded import Client, Federation

__all__ = ["Client", "Federation"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"Client": "expunge.federation.embedded", "Federation": "expunge.federation.embedded"},
)
