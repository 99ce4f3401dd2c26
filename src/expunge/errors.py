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
    │   ├── StoreDamagedError    their content is not what was written
    │   └── ShreddedError        a key that has been destroyed, and what it sealed with it
    ├── UnknownSampleError       a sample, subject, client or order that is not there
    ├── CommitmentError          a sample that is not the one that was committed to
    ├── BackboneError            a backbone that is not the one the spec names, or not deterministic
    ├── MissingExtraError        an optional dependency that is not installed
    ├── PlugInError              a command of another distribution that cannot be loaded
    └── PlatformError            a machine whose BLAS is not exact on small integers
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, cast

from expunge._lazy import public_dir

__all__ = [
    "BackboneError",
    "CarrierError",
    "CommitmentError",
    "EvidenceError",
    "ExpungeError",
    "FormatError",
    "GridRangeError",
    "IllConditionedError",
    "ImpossibleDeletionError",
    "InputError",
    "InterruptedChangeError",
    "LostColumnError",
    "MissingExtraError",
    "NotAGramError",
    "NotFiniteError",
    "PlatformError",
    "PlugInError",
    "PosteriorError",
    "ProtocolError",
    "PublicationRangeError",
    "RefusalCode",
    "RefusedError",
    "ShapeError",
    "ShreddedError",
    "SolveError",
    "SpecError",
    "SpecMismatchError",
    "StoreBusyError",
    "StoreDamagedError",
    "StoreError",
    "TruncatedError",
    "UndecidableTieError",
    "UnknownLabelError",
    "UnknownSampleError",
]
__dir__ = public_dir(__name__)

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
    "wrong-protocol",
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
    "no-room",
    "storage",
]


class ExpungeError(Exception):
    """The root of every error that Expunge raises on purpose.

    Catch it to handle whatever Expunge refuses; the message says what happened, to which thing, and
    what to do. The object that raised is unchanged afterwards.

    Examples
    --------
    >>> import expunge
    >>> try:
    ...     expunge.Grid(digits=3)
    ... except expunge.errors.ExpungeError as problem:
    ...     print(problem)
    Grid(digits=3): digits must be 1 or 2 (three would not fit 128-bit sums)
    """


class SpecError(ExpungeError, ValueError):
    """Raised for a spec, a grid or rules of aggregation whose values are impossible.

    Correct the value that the message names. It is a ValueError too.

    Examples
    --------
    >>> import expunge
    >>> expunge.Spec(dim=8, outputs=1, gamma=0.0)
    Traceback (most recent call last):
        ...
    expunge.errors.SpecError: gamma=0.0 must be positive and finite: ...
    """


class SpecMismatchError(SpecError):
    """Raised where two things of different specs are brought together.

    Make both under one spec: dim, intercept, grids, backbone and labels must agree.
    `Spec.difference` says in which fields they differ.

    Examples
    --------
    >>> import expunge
    >>> narrow = expunge.Statistics.zero(expunge.Spec(dim=2, outputs=1))
    >>> narrow + expunge.Statistics.zero(expunge.Spec(dim=3, outputs=1))
    Traceback (most recent call last):
        ...
    expunge.errors.SpecMismatchError: cannot add statistics of different specs: ...
    """


class InputError(ExpungeError, ValueError):
    """Raised for features, labels or other arguments that cannot be taken.

    Correct the argument or leave the sample out; the message names it by row and column where that
    is possible. It is a ValueError too.

    Examples
    --------
    >>> import expunge
    >>> expunge.solve("statistics.bin")
    Traceback (most recent call last):
        ...
    expunge.errors.InputError: solve takes Statistics, got str; ...
    """


class ShapeError(InputError):
    """Raised for an array of the wrong shape or kind.

    Reshape or convert the array as the message says.

    Examples
    --------
    >>> import expunge
    >>> expunge.Statistics.of(expunge.Spec(dim=2, outputs=1), [1.0, 2.0], [3.0])
    Traceback (most recent call last):
        ...
    expunge.errors.ShapeError: features must have shape (n, 2), got (2,) (one sample: ...)
    """


class NotFiniteError(InputError):
    """Raised for NaN or infinity in features or labels.

    Drop or mend the sample; the message has its row and column.

    Examples
    --------
    >>> import expunge
    >>> expunge.Statistics.of(expunge.Spec(dim=1, outputs=1), [[float("nan")]], [1.0])
    Traceback (most recent call last):
        ...
    expunge.errors.NotFiniteError: row 0, column 0 of the features is nan: ...
    """


class GridRangeError(InputError):
    """Raised for a value beyond the range of its grid; values are never clipped.

    Make the spec with the grid that the message proposes, or scale the values down.

    Examples
    --------
    >>> import expunge
    >>> expunge.Statistics.of(expunge.Spec(dim=1, outputs=1), [[1000.0]], [1.0])
    Traceback (most recent call last):
        ...
    expunge.errors.GridRangeError: row 0, column 0 of the features is beyond the range of Grid...
    """


class LostColumnError(InputError):
    """Raised for a column that is not zero, but whose every value rounds to zero on the grid.

    Choose a finer grid, scale or drop the column, or pass lost_columns="accept" if it does not
    matter.

    Examples
    --------
    >>> import expunge
    >>> expunge.Statistics.of(expunge.Spec(dim=1, outputs=1), [[1e-30]], [1.0])
    Traceback (most recent call last):
        ...
    expunge.errors.LostColumnError: column 0 of the features is lost to the grid: ...
    """


class UnknownLabelError(InputError):
    """Raised for a label that the spec does not have.

    Mend the label, or take the class in: `Spec.with_labels`, and a solver's `amend`.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=1, labels=("cat", "dog"))
    >>> expunge.Statistics.of(spec, [[1.0]], ["bird"])
    Traceback (most recent call last):
        ...
    expunge.errors.UnknownLabelError: the label of row 0 is not in the spec, ...
    """


class FormatError(ExpungeError, ValueError):
    """Raised for bytes that are truncated, altered, of another kind or of another version.

    Fetch them again, or read them with the release that wrote them. It is a ValueError too.

    Examples
    --------
    >>> import expunge
    >>> expunge.Statistics.from_bytes(expunge.Spec(dim=1, outputs=1), b"something else entirely")
    Traceback (most recent call last):
        ...
    expunge.errors.FormatError: these bytes are not statistics: they do not begin as such
    """


class TruncatedError(FormatError):
    """Raised for bytes that end too early and are right as far as they go.

    Fetch them again.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> expunge.Statistics.from_bytes(spec, expunge.Statistics.zero(spec).to_bytes()[:-1])
    Traceback (most recent call last):
        ...
    expunge.errors.TruncatedError: the bytes of statistics are truncated: ...
    """


class ImpossibleDeletionError(ExpungeError, ValueError):
    """Raised for a deletion that provably is not of samples that were added.

    Delete only samples that were added, with the features and labels they were added with. Nothing
    was deleted. That the error is not raised proves nothing: arithmetic cannot see every deletion
    of samples that were never there.

    Examples
    --------
    >>> import expunge
    >>> expunge.CholeskySolver(expunge.Spec(dim=1, outputs=1)).delete([[1.0]], [1.0])
    Traceback (most recent call last):
        ...
    expunge.errors.ImpossibleDeletionError: there would be -1 samples; nothing was deleted. ...
    """


class SolveError(ExpungeError, ArithmeticError):
    """Raised where a head cannot be published; the subclasses say why.

    It is an ArithmeticError too.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> try:
    ...     expunge.solve(-expunge.Statistics.of(spec, [[1.0]], [1.0]))
    ... except expunge.errors.SolveError as problem:
    ...     print(type(problem).__name__)
    NotAGramError
    """


class IllConditionedError(SolveError):
    """Raised for a system that the conditioning rule refuses.

    The rule is width * 2^-53 * trace(S + gamma I) / gamma <= 2^-6, computed from the exact
    statistics alone. Choose the gamma that the message names, or scale the features down.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=1, outputs=1, gamma=1e-20)
    >>> expunge.solve(expunge.Statistics.of(spec, [[1.0]], [1.0]))
    Traceback (most recent call last):
        ...
    expunge.errors.IllConditionedError: the system is too ill-conditioned for a certified head: ...
    """


class NotAGramError(SolveError):
    """Raised for statistics that no set of samples has.

    Something was subtracted that had not been added: compute the statistics anew from the retained
    samples. An approximate ledger raises it too, where S_ap + gamma I cannot be proven positive
    definite; reset that from exact statistics.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> expunge.solve(-expunge.Statistics.of(spec, [[1.0]], [1.0]))
    Traceback (most recent call last):
        ...
    expunge.errors.NotAGramError: these are not the statistics of any set of samples: ...
    """


class UndecidableTieError(SolveError):
    """Raised for a weight that lies in the middle of two points of the publication grid.

    Such a weight has no correct rounding. With one more publication bit it is a grid point:
    `Spec.with_publication_bits`.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=1, outputs=1, intercept=False, gamma=1.0, publication_bits=0)
    >>> expunge.solve(expunge.Statistics.of(spec, [[1.0]], [1.0]))  # the weight is 1/2
    Traceback (most recent call last):
        ...
    expunge.errors.UndecidableTieError: the weight of feature 0 for output 0 lies between two ...
    """


class PublicationRangeError(SolveError):
    """Raised for a weight too large to be an exact float64 on the publication grid.

    Choose fewer publication bits, as the message says, or scale the targets down.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=1, outputs=1, intercept=False, gamma=1.0, publication_bits=60)
    >>> expunge.solve(expunge.Statistics.of(spec, [[1.0]], [63.0]))
    Traceback (most recent call last):
        ...
    expunge.errors.PublicationRangeError: the weight of feature 0 for output 0 is about 31.5 ...
    """


class PosteriorError(ExpungeError, ValueError):
    """Raised for noise parameters that contradict each other or the data.

    Give sigma or tau alone, or more samples where the noise is to be estimated. It is a ValueError
    too.

    Examples
    --------
    >>> import expunge
    >>> statistics = expunge.Statistics.zero(expunge.Spec(dim=1, outputs=1, gamma=1.0))
    >>> expunge.Posterior(statistics, sigma=1.0, tau=2.0)
    Traceback (most recent call last):
        ...
    expunge.errors.PosteriorError: sigma=1.0 and tau=2.0 mean gamma = sigma^2/tau^2 = 0.25, but ...
    """


class InterruptedChangeError(ExpungeError, RuntimeError):
    """Raised by a solver that was interrupted while it changed a few samples row by row, at every
    later call.

    Its sums can no longer be trusted. Make a new solver from statistics or samples that you kept.
    It is a RuntimeError too.
    """


class EvidenceError(ExpungeError, ValueError):
    """Raised for a signature, proof, receipt or certificate that does not hold.

    Do not act on the evidence: ask for it again, and if it still does not hold, ask the operator of
    the server. It is a ValueError too.

    Examples
    --------
    >>> import os
    >>> from expunge.crypto import SigningKey
    >>> key = SigningKey(os.urandom(32))
    >>> key.public.verify(key.sign(b"what was signed"), b"something else")
    Traceback (most recent call last):
        ...
    expunge.errors.EvidenceError: the signature is not by key ..., or what it signs was altered
    """


class ProtocolError(ExpungeError, RuntimeError):
    """Raised for a request, command or round that cannot be brought to its end.

    The subclasses tell a refusal from a lost answer. It is a RuntimeError too.
    """


class RefusedError(ProtocolError):
    """Raised where the server refuses a request: this attempt has changed nothing.

    Parameters
    ----------
    code : str
        Why, for programs: one of `RefusalCode`, or one of a later version.
    reason : str
        Why, for people; the message of the error.
    **details : object
        JSON values that belong to the code, such as `expected` or `retry_after`.

    Attributes
    ----------
    code : str
        As given.
    reason : str
        As given.
    details : dict of str to object
        As given.

    Notes
    -----
    docs/protocol.md lists the codes with what to do: offer the same bytes later, make the request
    anew, or ask a person. Clients do the first two by themselves.

    Examples
    --------
    >>> import expunge
    >>> refusal = expunge.errors.RefusedError("too-many", "try again in 2 seconds", retry_after=2)
    >>> refusal.code, str(refusal), refusal.details
    ('too-many', 'try again in 2 seconds', {'retry_after': 2})
    """

    def __init__(self, code: RefusalCode, reason: str, **details: object) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.details = details

    @classmethod
    def received(cls, code: str, reason: str, details: dict[str, object]) -> RefusedError:
        """A refusal as it came from a server; its code may be a later version's.

        Parameters
        ----------
        code : str
            Any text.
        reason : str
            The message.
        details : dict of str to object
            JSON values. Those named like a parameter of the constructor are left out.

        Returns
        -------
        RefusedError
            To be raised.
        """
        named = {name: value for name, value in details.items() if name not in _TAKEN}
        return cls(cast("RefusalCode", code), reason, **named)

    def __reduce__(self) -> tuple[object, ...]:
        return RefusedError.received, (self.code, self.reason, self.details)


_TAKEN = frozenset({"code", "reason", "self"})  # parameters of a refusal: no names of details


class CarrierError(ProtocolError):
    """Raised where no answer came, or only a damaged one.

    The request may or may not have taken effect, so offer the very same one again: it is applied
    exactly once. A client's next sync does that.
    """


class StoreError(ExpungeError, RuntimeError):
    """Raised for files of a client or server that cannot be used.

    They are missing, of another version, damaged, or there already. Follow the message: correct the
    path, put the file back, or restore a backup. It is a RuntimeError too.
    """


class StoreBusyError(StoreError):
    """Raised where another process is at work on the same files.

    Wait until that process has finished, or stop it; the message has its number where it is known.
    """


class StoreDamagedError(StoreError):
    """Raised for files of a client or server whose content is not what was written.

    Nothing was changed. `expunge client scrub` and `expunge server scrub` look for all that is
    damaged, and with `--repair` put right what can be; the rest comes back from a backup.
    """


class ShreddedError(StoreError):
    """Raised where a key has been destroyed, and with it all that it sealed.

    This is what deletion means: nothing brings the content back.
    """


class UnknownSampleError(ExpungeError, LookupError):
    """Raised for a sample, subject, client or order that is not there.

    Check the name against `expunge client list` or `expunge order list`. It is a LookupError too.
    """


class CommitmentError(ExpungeError, ValueError):
    """Raised for a sample that is not the one that was committed to.

    A client computed its feature again, or opened it, and got other integers than those that were
    added. Nothing was deleted: put the sample's source and the backbone back as they were. It is a
    ValueError too.
    """


class BackboneError(ExpungeError, ValueError):
    """Raised for a backbone that cannot be opened, is not the one the spec names, or breaks a law.

    Use the weights, preprocessing and output that the federation agreed on. It is a ValueError too.

    Examples
    --------
    >>> from expunge.backbones import backbone_from
    >>> backbone_from("precomputed:features-of-2024?dims=768")
    Traceback (most recent call last):
        ...
    expunge.errors.BackboneError: 'precomputed:features-of-2024?dims=768' lacks the option dim: ...
    """


class MissingExtraError(ExpungeError, ImportError):
    """Raised where an optional dependency is not installed.

    The message has the command that installs it, such as pip install 'expunge[onnx]'. It is an
    ImportError too.
    """


@contextmanager
def requires_extra(extra: str, what: str) -> Iterator[None]:
    """Around imports of optional dependencies: if one fails, the error names the extra to install
    for `what`.
    """
    try:
        yield
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] == "expunge":
            raise
        raise MissingExtraError(
            f"{problem}. {what} needs it: pip install 'expunge[{extra}]'"
        ) from problem


class PlugInError(ExpungeError, ImportError):
    """Raised where a command of another distribution cannot be loaded.

    Update or uninstall that distribution; all other commands work without it. It is an ImportError
    too.
    """


class PlatformError(ExpungeError, RuntimeError):
    """Raised on a machine whose BLAS does not multiply small integers exactly.

    No exact statistics can be made there. Install scipy from its ordinary wheel, or switch off
    fast-multiplication and fp64-emulation modes. It is a RuntimeError too.
    """
