"""ApproximateLedger: sums of approximate messages, with everything that is known of their error.

Its head is an `ApproximateHead`: weights with proven bounds on how far they are from the exact
ones. It is no `Head`, and never has a digest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add as plus
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from expunge.approximate import bounds
from expunge.approximate import bounds as formulas
from expunge.approximate.bounds import ROUNDED, Bounds, Interval
from expunge.approximate.message import ApproximateMessage
from expunge.errors import ImpossibleDeletionError, InputError, NotAGramError, SpecMismatchError
from expunge.exact import blas
from expunge.exact.blas import scipy_lapack
from expunge.ridge.head import predictions_of, scores_of
from expunge.ridge.plausibility import count_problem
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import require_room
from expunge.solvers.certify import require_possible

Float = NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False, slots=True)
class ApproximateHead:
    """Weights in float64 with proven bounds on their distance to the exact solution.

    The exact solution, of which a `Head` is the rounding, lies within `bounds` of `weights`.

    Attributes
    ----------
    spec : Spec
        The ledger's spec.
    gamma : float
        What the head was solved with, which may differ from the spec's.
    weights : float64 ndarray of shape (width, columns)
        The last row is the intercept, if the spec has one; read-only.
    count : int
        The number of retained samples.
    bounds : Bounds
        How far the weights are, at most, from the exact ones.

    See Also
    --------
    expunge.Head : the exact head, with a digest.

    Notes
    -----
    It has no digest, integers or bytes, and cannot have any: it has slots and allows no subclasses.
    So no certificate, receipt or export can be of it.

    Examples
    --------
    >>> import expunge
    >>> from expunge.approximate import ApproximateLedger
    >>> spec = expunge.Spec(dim=1, labels=("cat", "dog"))
    >>> statistics = expunge.Statistics.of(spec, [[1.0], [2.0]], ["cat", "dog"])
    >>> head = ApproximateLedger.of(spec, [statistics]).head()
    >>> head.predict([[0.0], [3.0]]).tolist()
    ['cat', 'dog']
    >>> exact = expunge.solve(statistics)  # rounded to multiples of 2^-40
    >>> bool(abs(head.weights - exact.weights).max() < 1e-9)
    True
    >>> hasattr(head, "digest")
    False
    """

    spec: Spec
    gamma: float
    weights: Float
    count: int
    bounds: Bounds

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError(
            "an ApproximateHead has no subclasses: one could give it what evidence of exactness "
            "is made of"
        )

    @property
    def relative_bound(self) -> float:
        """The Frobenius bound over the norm of the weights; infinite for zeros that may be off."""
        length = float(np.sqrt(np.square(self.weights).sum()))
        if length > 0.0:
            return self.bounds.frobenius / length
        return 0.0 if self.bounds.frobenius == 0.0 else float("inf")

    def scores(self, features: Any) -> Float:
        """The products of features and weights, plus the intercept, in ordinary float64 arithmetic.

        Parameters
        ----------
        features : array-like of shape (n, dim)
            Real and finite.

        Returns
        -------
        float64 ndarray of shape (n, columns)
            The scores.

        Raises
        ------
        ShapeError
            If the features have another shape, or are not real numbers.
        NotFiniteError
            If a feature is NaN or infinite.
        """
        return scores_of(self.spec, self.weights, features)

    def predict(self, features: Any) -> NDArray[Any]:
        """The label of the largest score, the first of equals; in regression the scores.

        Parameters
        ----------
        features : array-like of shape (n, dim)
            Real and finite.

        Returns
        -------
        ndarray
            Labels of shape (n,), or scores of shape (n, outputs).

        Raises
        ------
        ShapeError
            If the features have another shape, or are not real numbers.
        NotFiniteError
            If a feature is NaN or infinite.
        """
        return predictions_of(self.spec, self.weights, features)


_CONVERTED = 2.0**-51  # what `gram_float` and `moment_float` lose of each entry


@dataclass
class Traffic:
    """What clients have sent so far: approximate messages, and the exact statistics of resets.

    Only what was accepted is counted.

    Attributes
    ----------
    messages : int
        Approximate messages.
    message_bytes : int
        Their bytes.
    resets : int
        Resets, the exact beginning of `ApproximateLedger.of` included.
    statistics : int
        Exact statistics that came with resets.
    reset_bytes : int
        Their bytes.

    Examples
    --------
    >>> import expunge
    >>> from expunge.approximate import ApproximateLedger
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> ledger = ApproximateLedger.of(spec, [expunge.Statistics.of(spec, [[1.0]], [3.0])])
    >>> ledger.traffic.resets, ledger.traffic.statistics, ledger.traffic.messages
    (1, 1, 0)
    """

    messages: int = 0
    message_bytes: int = 0
    resets: int = 0
    statistics: int = 0
    reset_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The bytes of messages and resets together."""
        return self.message_bytes + self.reset_bytes


@dataclass
class _Sums:
    """S as its upper triangle and G, with the interval of what S is off by, the same for G, and
    counts.
    """

    gram: Float
    moment: Float
    error: Interval
    moment_error: float
    count: int
    class_counts: NDArray[np.int64]

    @classmethod
    def zero(cls, spec: Spec) -> _Sums:
        classes = np.zeros(spec.columns if spec.is_classification else 0, dtype=np.int64)
        return cls(
            np.zeros((spec.width, spec.width)),
            np.zeros((spec.width, spec.columns)),
            Interval(),
            0.0,
            0,
            classes,
        )


@final
class ApproximateLedger:
    """The server's side of approximate updates: float64 sums, and how far they may be off.

    For the true S and G of what is retained, -error.below I <= S - S_ap <= error.above I and
    ||G - G_ap||_F <= moment_error, with the rounding errors of the ledger's own sums included, as
    long as the claims of every message hold. A refused call changes nothing.

    Parameters
    ----------
    spec : Spec
        What messages and statistics must be of.
    reset_every : int, optional
        A reset is due after this many requests; 1 or more.
    reset_above : float, optional
        A reset is due when the Frobenius bound of the head exceeds this; positive.

    Attributes
    ----------
    spec, reset_every, reset_above
        As given.
    requests : int
        Messages accepted since the last reset.
    traffic : Traffic
        What clients have sent so far.

    Raises
    ------
    InputError
        If `reset_every` is below 1, or `reset_above` is not positive.

    See Also
    --------
    expunge.CholeskySolver : an exact ledger.

    Notes
    -----
    At a reset each client that has changed since the last one sends the exact statistics of its
    change: what it added minus what it deleted, one `Statistics` however many requests there were.
    The sums of the last reset plus these take the place of everything approximate. For this the
    ledger keeps the float64 sums of the last reset: a second matrix, once there has been one.

    Examples
    --------
    >>> import numpy as np
    >>> import expunge
    >>> from expunge.approximate import ApproximateLedger, Batch, compress
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 4))
    >>> y = X @ [1.0, -2.0, 0.5, 0.0]
    >>> spec = expunge.Spec(dim=4, outputs=1)
    >>> before = expunge.Statistics.of(spec, X[:50], y[:50])
    >>> ledger = ApproximateLedger.of(spec, [before], reset_every=1)
    >>> ledger.add(compress(Batch.of(spec, X[50:], y[50:]), "truncated", rank=4))
    >>> exact = expunge.solve(expunge.Statistics.of(spec, X, y))
    >>> head = ledger.head()
    >>> bool(np.linalg.norm(head.weights - exact.weights) <= head.bounds.frobenius)
    True
    >>> ledger.reset_due
    True
    >>> ledger.reset([expunge.Statistics.of(spec, X[50:], y[50:])])
    >>> ledger.head().bounds.frobenius < 1e-9
    True
    """

    __slots__ = (
        "_base",
        "_bound",
        "_floor",
        "_sums",
        "requests",
        "reset_above",
        "reset_every",
        "spec",
        "traffic",
    )

    def __init__(
        self, spec: Spec, *, reset_every: int | None = None, reset_above: float | None = None
    ) -> None:
        if reset_every is not None and reset_every < 1:
            raise InputError(f"reset_every={reset_every} must be at least 1, or None")
        if reset_above is not None and not reset_above > 0.0:
            raise InputError(f"reset_above={reset_above} must be positive, or None")
        self.spec = spec
        self.reset_every = reset_every
        self.reset_above = reset_above
        self.requests = 0  # since the last reset
        self.traffic = Traffic()
        self._sums = _Sums.zero(spec)
        self._base: _Sums | None = None  # the sums of the last reset; None means zeros
        self._bound: float | None = None  # of the present head, under the spec's gamma
        self._floor: float | None = None  # proven, of the present S_ap under the spec's gamma

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError(
            "an ApproximateLedger has no subclasses: one could give it what evidence of exactness "
            "is made of"
        )

    @classmethod
    def of(
        cls,
        spec: Spec,
        statistics: Iterable[Statistics],
        *,
        reset_every: int | None = None,
        reset_above: float | None = None,
    ) -> ApproximateLedger:
        """A ledger that begins with exact statistics, which counts as its first reset.

        Parameters
        ----------
        spec : Spec
            What messages and statistics must be of.
        statistics : iterable of Statistics
            One for each client.
        reset_every : int, optional
            As for the class.
        reset_above : float, optional
            As for the class.

        Returns
        -------
        ApproximateLedger
            Of all their samples.

        Raises
        ------
        InputError
            If `reset_every` is below 1, or `reset_above` is not positive.
        SpecMismatchError
            If statistics are of another spec.
        NotAGramError
            If integers prove that their sum belongs to no set of samples.
        """
        ledger = cls(spec, reset_every=reset_every, reset_above=reset_above)
        parts = list(statistics)
        ledger._begin(ledger._exactly(parts), parts)
        return ledger

    def __repr__(self) -> str:
        return (
            f"<ApproximateLedger of {self.count} samples, {self.spec.width} features, error "
            f"{self.error.norm:.3g}>"
        )

    @property
    def count(self) -> int:
        """The number of retained samples."""
        return self._sums.count

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """The number of retained samples of each label, as int64; empty in regression."""
        return self._sums.class_counts.copy()

    @property
    def error(self) -> Interval:
        """The interval of S - S_ap."""
        return self._sums.error

    @property
    def moment_error(self) -> float:
        """A bound on the Frobenius norm of what the moment is off by."""
        return self._sums.moment_error

    # -- changes -----------------------------------------------------------------------------------

    def add(self, message: ApproximateMessage) -> None:
        """Take in the message of samples that are added.

        Parameters
        ----------
        message : ApproximateMessage
            Of the added samples.

        Raises
        ------
        SpecMismatchError
            If the message is of another spec.
        InputError
            If the sums would no longer be finite, or there would be more than 2^44 samples.
        """
        self._apply(message, 1)

    def delete(self, message: ApproximateMessage) -> None:
        """Take in the message of samples that are deleted; afterwards there is a head.

        Parameters
        ----------
        message : ApproximateMessage
            Of the deleted samples. Its method and rank need not be those of their addition.

        Raises
        ------
        SpecMismatchError
            If the message is of another spec.
        ImpossibleDeletionError
            If there are not as many samples, or not as many of a label.
        NotAGramError
            If S_ap + gamma I could not be proven positive definite afterwards: reset first.
        InputError
            If the sums would no longer be finite.

        Notes
        -----
        A right deletion can be infeasible here, because an approximate addition brought less, in
        some direction, than is taken away now.
        """
        self._apply(message, -1)

    def _apply(self, message: ApproximateMessage, sign: int) -> None:
        sums = self._sums
        self._require_same(message.spec)
        count, class_counts = (
            sums.count + sign * message.count,
            sums.class_counts + sign * message.class_counts,
        )
        problem = count_problem(self.spec, count, class_counts.tolist())
        if problem is not None:
            raise ImpossibleDeletionError(
                f"{message.count} samples with these labels cannot be deleted from a ledger of "
                f"{sums.count} ({problem}): nothing "
                "was deleted. Delete only samples that were added"
            )
        require_room(count)
        new = self._changed(message, sign, count, class_counts)
        floor = None if sign > 0 else bounds.floor(new.gram, self.spec.gamma)
        if floor is not None and floor <= 0.0:
            raise NotAGramError(
                f"deleting these {message.count} samples by a message of rank {message.rank} would "
                "leave no S_ap + gamma I that can be proven positive definite (the downdate "
                "lemma): nothing was deleted. Reset the ledger from exact statistics, then "
                "delete; or use higher ranks"
            )
        self._bound = self._floor = None
        self._sums = new
        self._floor = floor
        self.requests += 1
        self.traffic.messages += 1
        self.traffic.message_bytes += message.size

    def _changed(
        self, message: ApproximateMessage, sign: int, count: int, class_counts: NDArray[np.int64]
    ) -> _Sums:
        """The sums with this message, in memory of their own, so that a refusal or an interrupt
        finds the old ones whole.
        """
        sums = self._sums
        factor = np.ascontiguousarray(message.factor, dtype=np.float64)
        squares = float(np.square(factor).sum())
        rounding = (message.rank + 2) * bounds.UNIT * (
            bounds.frobenius(sums.gram) + squares
        ) * 1.25 + bounds.UNDERFLOW
        error = (sums.error + (message.error if sign > 0 else -message.error)).widened(rounding)
        gram = sums.gram.copy()
        blas.add_gram(factor, gram, float(sign))
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused just below
            moment = sums.moment + sign * message.moment
            lost = bounds.UNIT * blas.norm(moment) * 1.25 + bounds.UNDERFLOW
            moment_error = (sums.moment_error + message.moment_error + lost) * ROUNDED
            finite = math.isfinite(moment_error) and math.isfinite(bounds.frobenius(gram))
        if not finite:
            raise InputError(
                "with this message the sums would no longer be finite: nothing was changed. "
                "Refuse its sender"
            )
        return _Sums(gram, moment, error, moment_error, count, class_counts)

    # -- heads -------------------------------------------------------------------------------------

    def head(self, gamma: float | None = None) -> ApproximateHead:
        """The head of the approximate sums, with its bounds.

        Parameters
        ----------
        gamma : float, optional
            By default the spec's.

        Returns
        -------
        ApproximateHead
            With the bounds under this gamma.

        Raises
        ------
        NotAGramError
            If S_ap + gamma I cannot be proven positive definite: reset, or choose a larger gamma.
        SpecError
            If gamma is out of range.
        """
        used = self.spec.gamma if gamma is None else self.spec.with_gamma(gamma).gamma
        sums = self._sums
        lower = bounds.factor(sums.gram, used)
        floor = (
            self._floor
            if gamma is None and self._floor is not None
            else bounds.floor(sums.gram, used, lower)
        )
        if lower is None or floor <= 0.0:
            raise NotAGramError(
                f"S_ap + gamma I cannot be proven positive definite with gamma = {used:g}: reset "
                "the ledger from exact statistics, or choose a larger gamma"
            )
        weights = np.ascontiguousarray(scipy_lapack.dpotrs(lower, sums.moment, lower=1)[0])
        error_bounds = self._bounds(weights, used, floor)
        weights.flags.writeable = False
        if gamma is None:
            self._bound, self._floor = error_bounds.frobenius, floor
        return ApproximateHead(self.spec, used, weights, sums.count, error_bounds)

    def _bounds(self, weights: Float, gamma: float, floor: float) -> formulas.Bounds:
        sums, width = self._sums, self.spec.width
        rest = sums.moment - blas.symmetric_multiply(sums.gram, weights) - gamma * weights
        length, size = blas.norm(weights) * ROUNDED, blas.norm(sums.moment) * ROUNDED
        lost = (
            (width + 8)
            * bounds.UNIT
            * 1.25
            * ((bounds.frobenius(sums.gram) + gamma) * length + size)
        )
        remaining = (blas.norm(rest) + lost) * ROUNDED
        whole = formulas.Norms(length, size, remaining, sums.moment_error)
        spectral = formulas.Norms(
            bounds.spectral(weights),
            bounds.spectral(sums.moment),
            remaining,
            sums.moment_error,
        )
        paper = formulas.paper_inverse(sums.error, floor)
        return formulas.Bounds(
            sums.error,
            floor,
            paper,
            formulas.through_inverse(paper, sums.error, floor, gamma, spectral)
            if math.isfinite(paper)
            else math.inf,
            formulas.inverse_bound(sums.error, floor, gamma),
            formulas.weights_bound(sums.error, floor, gamma, spectral),
            formulas.weights_bound(sums.error, floor, gamma, whole),
        )

    # -- resets ------------------------------------------------------------------------------------

    @property
    def reset_due(self) -> bool:
        """Whether exact statistics should be asked for.

        With `reset_above` this may need the head's bound, and so a solve. It is true where there is
        no head, and false right after a reset.
        """
        if self.requests == 0:
            return False
        if self.reset_every is not None and self.requests >= self.reset_every:
            return True
        if self.reset_above is None:
            return False
        if self._bound is None:
            try:
                self.head()
            except NotAGramError:  # no head, no bound: exact statistics are the remedy
                return True
        return self._bound is None or self._bound > self.reset_above

    def reset(self, changes: Iterable[Statistics]) -> None:
        """Put exact statistics in the place of everything approximate since the last reset.

        What is left of the error is that of converting to float64.

        Parameters
        ----------
        changes : iterable of Statistics
            Of each client that has changed: what it added minus what it deleted since the last
            reset, or since the beginning. Their bytes are counted.

        Raises
        ------
        SpecMismatchError
            If statistics are of another spec.
        InputError
            If counts, moment or the diagonal of S show that the changes are not those that the
            messages were of, or that a message's bound was false.
        NotAGramError
            If, at the first reset, integers prove that the sum belongs to no set of samples.
        """
        parts = list(changes)
        new = self._exactly(parts)
        self._require_consistent(new)
        self._begin(new, parts)

    def _exactly(self, parts: list[Statistics]) -> _Sums:
        """The sums of the last reset with these changes."""
        for part in parts:
            self._require_same(part.spec)
        total = reduce(plus, parts) if parts else Statistics.zero(self.spec)
        if self._base is None and not total.gram_by_construction:
            require_possible(total)
        base = self._base or _Sums.zero(self.spec)
        moment, gram = total.moment_float(), np.triu(total.gram_float())
        converted = bounds.frobenius(gram) * _CONVERTED
        gram += base.gram
        lost = (converted + bounds.frobenius(gram) * bounds.UNIT) * 1.25
        whole = base.moment + moment
        moment_lost = (blas.norm(moment) * _CONVERTED + blas.norm(whole) * bounds.UNIT) * 1.25
        return _Sums(
            gram,
            whole,
            base.error.widened(lost),
            (base.moment_error + moment_lost) * ROUNDED,
            base.count + total.count,
            base.class_counts + total.class_counts,
        )

    def _begin(self, new: _Sums, parts: list[Statistics]) -> None:
        """Go on from exact sums that these parts have brought."""
        sizes = [len(part.to_bytes()) for part in parts]
        self.traffic.resets += 1
        self.traffic.statistics += len(sizes)
        self.traffic.reset_bytes += sum(sizes)
        self._bound = self._floor = None
        self._base = new
        self._sums = replace(new)  # the same arrays: every change makes new ones
        self.requests = 0

    def _require_consistent(self, new: _Sums) -> None:
        sums = self._sums
        if new.count != sums.count or not np.array_equal(new.class_counts, sums.class_counts):
            raise InputError(
                f"these statistics leave {new.count} samples and the messages so far {sums.count} "
                "(or other labels): nothing was reset. Each client that has changed sends what it "
                "added minus what it deleted since the last reset"
            )
        missed = blas.norm(new.moment - sums.moment)
        if missed > (
            sums.moment_error + new.moment_error
        ) * ROUNDED + 4.0 * bounds.UNIT * blas.norm(new.moment):
            raise InputError(
                "the moment of these statistics is not that of the messages: nothing was reset"
            )
        off = new.gram.diagonal() - sums.gram.diagonal()
        lost = 4.0 * bounds.UNIT * float(np.abs(new.gram.diagonal()).max(initial=0.0))
        room = sums.error + -new.error
        if off.max(initial=0.0) > room.above + lost or -off.min(initial=0.0) > room.below + lost:
            raise InputError(
                "the diagonal of these statistics lies outside the bounds that the messages came "
                "with: a message was of other samples, or its bound was false. Nothing was reset"
            )

    def _require_same(self, spec: Spec) -> None:
        own = self.spec
        if (spec.data_digest, spec.labels_digest) != (own.data_digest, own.labels_digest):
            raise SpecMismatchError(
                f"this was made under another spec than the ledger's: {own.difference(spec)}"
            )
