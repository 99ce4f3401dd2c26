"""Every error that Expunge raises on purpose.

Each message says what happened, to which thing, and what to do about it; the object that raised is
unchanged afterwards.

    ExpungeError
    ├── SpecError                a spec or a grid that cannot be
    │   └── SpecMismatchError    two things that belong to different specs
    ├── InputError               features or labels that cannot be taken
    │   ├── ShapeError           an array of the wrong shape or kind
    │   ├── NotFiniteError       NaN or infinity
    │   ├── GridRangeError       a value beyond the grid
    │   ├── LostColumnError      a column whose every bit is lost to the grid
    │   └── UnknownLabelError    a label that the spec does not have
    ├── FormatError              bytes that are truncated, altered or of another version
    │   └── TruncatedError       bytes that end too early, and are all right so far
    ├── ImpossibleDeletionError  a deletion that cannot be of samples that were added
    ├── SolveError               a head that cannot be published
    │   ├── IllConditionedError  refused by the conditioning rule
    │   ├── NotAGramError        statistics that no set of samples has
    │   ├── UndecidableTieError  a weight exactly between two publication points
    │   └── PublicationRangeError  a weight too large for the publication grid
    ├── PosteriorError           noise parameters that contradict each other or the data
    ├── InterruptedChangeError   a solver that was interrupted in the middle of a change
    ├── EvidenceError            a signature, proof, receipt or certificate that does not hold
    ├── ProtocolError            a request that cannot be brought to its end
    │   ├── RefusedError         the server said no: nothing has changed, and the reason is given
    │   └── CarrierError         lost or damaged on the way: the same request must be offered again
    ├── StoreError               files of a client or server that cannot be used
    │   ├── StoreBusyError       another process is at work on them
    │   └── ShreddedError        a key that has been destroyed, and what it sealed with it
    ├── UnknownSampleError       a sample, subject, client or order that is not there
    ├── CommitmentError          a sample that is not the one that was committed to
    ├── BackboneError            a backbone that is not the one the spec names, or not deterministic
    ├── MissingExtraError        an optional dependency that is not installed
    ├── PlugInError              a command of another distribution that cannot be loaded
    └── PlatformError            a machine whose BLAS is not exact on small integers
"""

from __future__ import annotations

from typing import Literal, cast

# Why a server refuses. What each code means, over HTTP and to a retry: wire/refusals.py.
RefusalCode = Literal[
    "malformed",
    "bad-signature",
    "unknown-actor",
    "bad-token",
    "not-allowed",
    "not-found",
    "sequence-gap",
    "sequence-reused",
    "name-taken",
    "must-rejoin",
    "gone",
    "too-large",
    "too-many",
    "wrong-federation",
    "wrong-spec",
    "wrong-counts",
    "wrong-round",
    "wrong-phase",
    "wrong-share",
    "already-live",
    "not-live",
    "not-opened",
    "impossible",
    "unsolvable",
    "unknown-order",
    "unknown-audit",
    "unknown-action",
    "storage",
]


class ExpungeError(Exception):
    """Root of every error that Expunge raises on purpose."""


class SpecError(ExpungeError, ValueError):
    """A spec or a grid that cannot be."""


class SpecMismatchError(SpecError):
    """Two things that belong to different specs were brought together."""


class InputError(ExpungeError, ValueError):
    """Features or labels that cannot be taken."""


class ShapeError(InputError):
    """An array of the wrong shape or kind."""


class NotFiniteError(InputError):
    """NaN or infinity in features or labels."""


class GridRangeError(InputError):
    """A value beyond the range of its grid. Values are never clipped."""


class LostColumnError(InputError):
    """A column that is not zero, but whose every value rounds to zero on the grid."""


class UnknownLabelError(InputError):
    """A label that the spec does not have."""


class FormatError(ExpungeError, ValueError):
    """Bytes that are truncated, altered, of another kind or of another version."""


class TruncatedError(FormatError):
    """Bytes that end too early, and are all right as far as they go: fetch them again."""


class ImpossibleDeletionError(ExpungeError, ValueError):
    """A deletion that provably is not of samples that were added."""


class SolveError(ExpungeError, ArithmeticError):
    """A head that cannot be published."""


class IllConditionedError(SolveError):
    """Refused by the conditioning rule, which is computed from the exact statistics alone."""


class NotAGramError(SolveError):
    """Statistics that are not the statistics of any set of samples."""


class UndecidableTieError(SolveError):
    """A weight that lies exactly between two points of the publication grid."""


class PublicationRangeError(SolveError):
    """A weight too large to be an exact float64 on the publication grid."""


class PosteriorError(ExpungeError, ValueError):
    """Noise parameters that contradict each other or the data."""


class InterruptedChangeError(ExpungeError, RuntimeError):
    """A solver that was interrupted in the middle of a change, and whose sums can no longer be
    trusted.
    """


class EvidenceError(ExpungeError, ValueError):
    """A signature, proof, receipt or certificate that does not hold."""


class ProtocolError(ExpungeError, RuntimeError):
    """A request that cannot be brought to its end."""


class RefusedError(ProtocolError):
    """The server refused: its state is unchanged.

    `code` is stable and for programs; `details` are JSON values.
    """

    def __init__(self, code: RefusalCode, reason: str, **details: object) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.details = details

    @classmethod
    def received(cls, code: str, reason: str, details: dict[str, object]) -> RefusedError:
        """A refusal as it came; its code may be a later version's, which no caller knows."""
        named = {name: value for name, value in details.items() if name not in _TAKEN}
        return cls(cast("RefusalCode", code), reason, **named)

    def __reduce__(self) -> tuple[object, ...]:
        return RefusedError.received, (self.code, self.reason, self.details)


_TAKEN = frozenset({"code", "reason", "self"})  # parameters of a refusal: no names of details


class CarrierError(ProtocolError):
    """No answer came, or none that is whole: the request may or may not have taken effect.

    So the very same one must be offered again.
    """


class StoreError(ExpungeError, RuntimeError):
    """Files of a client or server that cannot be used: missing, of another version, or damaged."""


class StoreBusyError(StoreError):
    """Another process is at work on the same files."""


class ShreddedError(StoreError):
    """A key that has been destroyed, and with it all that it sealed."""


class UnknownSampleError(ExpungeError, LookupError):
    """A sample, subject, client or order that is not there."""


class CommitmentError(ExpungeError, ValueError):
    """A sample that is not the one that was committed to."""


class BackboneError(ExpungeError, ValueError):
    """A backbone that is not the one the spec names, or that is not deterministic."""


class MissingExtraError(ExpungeError, ImportError):
    """An optional dependency that is not installed."""


class PlugInError(ExpungeError, ImportError):
    """A command of another distribution that cannot be loaded."""


class PlatformError(ExpungeError, RuntimeError):
    """A machine whose BLAS does not multiply small integers exactly."""
