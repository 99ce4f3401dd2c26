"""ExactRidgeClassifier and ExactRidgeRegressor: the exact core as scikit-learn estimators.

Laws, bit for bit, for one and the same grid: `fit(X, y)` equals `partial_fit` over any split of the
rows in any order; `partial_fit` followed by `forget` of the same rows is the identity;
`solver="cholesky"` and `solver="woodbury"` publish the same head. A refused call leaves the
estimator as it was.

What differs from scikit-learn's Ridge and RidgeClassifier:

- The intercept is the weight of a constant feature 1 and is penalised like the rest. The weights
  equal those of `Ridge(alpha=gamma, fit_intercept=False)` on features with a column of ones
  appended.
- A classifier has one column of 0 and 1 for each class (two for two classes), where RidgeClassifier
  has -1 and 1.
- Values are put on a fixed-point grid. With `grid=None` it is chosen from the first batch
  (`chosen_grid`) and reported as `grid_`: such an estimator remembers the magnitude of that batch
  even after forgetting it, and its laws hold relative to that grid. Only a given grid, as a
  federation agrees on beforehand, earns a certificate. A later value beyond the grid is refused,
  never clipped.
- There is no `sample_weight`: a head is a function of a set of samples. An integer weight is a
  repeated row.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from expunge.errors import GridRangeError, InputError, LostColumnError, SpecError, UnknownLabelError
from expunge.exact import Grid
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.solvers import CholeskySolver, WoodburySolver

_LEAST_HEADROOM_BITS = 3
_RUNG_BITS = 3
_NEGLIGIBLE = 2.0**-30


def chosen_grid(values: NDArray[Any], *, holding_one: bool) -> Grid:
    """A two-digit grid with room for at least three doublings of the largest magnitude in `values`.

    Limits stand on a ladder of powers of 2^3 that has the default grid's 64 among them, so that
    batches of similar magnitude choose the same grid, and at least 36 bits are left for the largest
    value. A grid that must hold 1 gives less room to values above 2^38 and fewer bits to values
    below 2^-5. Values that are all zero choose the default grid.
    """
    largest = _largest(values)
    if largest == 0.0:
        return Grid()
    rung = math.ceil((math.frexp(largest)[1] + _LEAST_HEADROOM_BITS) / _RUNG_BITS) * _RUNG_BITS
    return Grid.covering(2.0 ** min(rung - 1, 1000), headroom_bits=0, holding_one=holding_one)


def chosen_label_grid(targets: NDArray[Any], *, lost_columns: str) -> Grid:
    """`chosen_grid` for real targets; an output that is lost to it is refused unless
    lost_columns="accept".
    """
    grid = chosen_grid(targets, holding_one=False)
    if lost_columns == "accept":
        return grid
    for column, output in enumerate(np.atleast_2d(targets.T)):
        if 0.0 < (largest := _largest(output)) <= grid.step / 2.0:
            raise LostColumnError(
                f"output {column} of the targets is lost to {grid!r}, which the largest output of "
                f"the first batch asks for: its own largest magnitude is {largest:g}, and every "
                "value rounds to zero. Scale the outputs to similar magnitudes, give a "
                "label_grid, or pass lost_columns='accept' if that output does not matter"
            )
    return grid


def losses_are_negligible(spec: Spec, samples: int) -> bool:
    """Whether columns that round to zero throughout cannot matter, whichever they are.

    Such columns Z have entries of at most step / 2. Leaving them out of the kernel K = XX' + ZZ'
    changes the fitted values K (K + gamma I)^-1 y by at most ||ZZ'|| / gamma times ||y||; this says
    that the bound is at most 2^-30.
    """
    return spec.dim * samples * (spec.grid.step / 2.0) ** 2 <= _NEGLIGIBLE * spec.gamma


def _largest(values: NDArray[Any]) -> float:
    return max(float(values.max()), -float(values.min()))


Float = NDArray[np.float64]
Array = NDArray[Any]

_SOLVERS: dict[str, type[CholeskySolver | WoodburySolver]] = {
    "cholesky": CholeskySolver,
    "woodbury": WoodburySolver,
}
_LOST_COLUMNS = ("negligible", "refuse", "accept")
_SPARE_PUBLICATION_BITS = 5  # with the default label grid's 35 fraction bits this makes 40


class _ExactRidge(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no type hints
    """What both estimators share: a solver that holds the exact statistics, and the head that is
    solved when it is needed.
    """

    n_features_in_: int
    classes_: Array
    label_grid: Grid | None = Grid()  # a classifier's targets are 0 and 1
    _solver: CholeskySolver | WoodburySolver
    _columns: dict[str, Any]  # the spec's labels or outputs
    # of what is predicted for a row; () if y is one-dimensional
    _output_shape: tuple[int, ...] = (-1,)

    def __init__(
        self,
        gamma: float = 1.0,
        *,
        fit_intercept: bool = True,
        solver: str = "cholesky",
        grid: Grid | None = None,
        publication_bits: int | None = 40,
        lost_columns: str = "negligible",
    ) -> None:
        self.gamma = gamma
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.grid = grid
        self.publication_bits = publication_bits
        self.lost_columns = lost_columns

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_solver")

    @property
    def spec_(self) -> Spec:
        """What the head is solved under."""
        check_is_fitted(self)
        return self._solver.spec

    @property
    def grid_(self) -> Grid:
        """The grid of the features, given or chosen."""
        return self.spec_.grid

    @property
    def statistics_(self) -> Statistics:
        """The exact statistics of what is retained."""
        check_is_fitted(self)
        return self._solver.statistics

    @property
    def head_(self) -> Head:
        """The certified head of what is retained, with its weights, digest and error bound; solved
        on first use.
        """
        check_is_fitted(self)
        return self._solver.head()

    @property
    def coef_(self) -> Float:
        """Shape (classes or outputs, features); (1, features) for two classes, (features,) for a
        one-dimensional regression.
        """
        return self._linear()[: self.n_features_in_].T.reshape(
            *self._output_shape, self.n_features_in_
        )

    @property
    def intercept_(self) -> Float:
        """Shape (classes or outputs,); (1,) for two classes, a number for a one-dimensional
        regression; zero if there is none.
        """
        weights = self._linear()
        intercept = weights[-1] if self.spec_.intercept else np.zeros(weights.shape[1])
        return intercept.reshape(self._output_shape)[()]

    def _linear(self) -> Float:
        """What a row of features, and a 1 if there is an intercept, is multiplied by."""
        return self.head_.weights

    def _scores(self, X: Any) -> Float:
        check_is_fitted(self)
        return self.head_.scores(
            np.asarray(validate_data(self, X, reset=False, dtype=(np.float64, np.float32)))
        )

    def fit(self, X: Any, y: Any) -> Self:
        """Start anew from these samples, and solve; a classifier's classes are those of y."""
        with self._unless_refused():
            self.__dict__.pop("classes_", None)
            self._begin(X, y)
            self._solver.head()
        return self

    def forget(self, X: Any, y: Any) -> Self:
        """Delete samples that were added, given by the same features and targets: the exact inverse
        of `partial_fit`.

        Raises ImpossibleDeletionError if these samples provably were not added. Arithmetic cannot
        see every such mistake.
        """
        check_is_fitted(self)
        self._change(X, y, -1)
        return self

    @abstractmethod
    def _checked(self, X: Any, y: Any, *, first: bool) -> tuple[Array, Array]:
        """Features and targets as the core takes them; the first time, what depends on the kind of
        y is set.
        """

    def _begin(self, X: Any, y: Any) -> None:
        """Start anew; to be called within `_unless_refused`."""
        features, targets = self._checked(X, y, first=True)
        spec = self._spec(
            chosen_grid(features, holding_one=bool(self.fit_intercept))
            if self.grid is None
            else self.grid,
            chosen_label_grid(targets, lost_columns=self.lost_columns)
            if self.label_grid is None
            else self.label_grid,
        )
        solver = self._solver_class()(spec)
        self._add(solver, spec, features, targets)
        self._solver = solver

    def _change(self, X: Any, y: Any, sign: int) -> None:
        """Add or delete samples, then go on under the spec that the parameters say now."""
        features, targets = self._checked(X, y, first=False)
        fitted, wanted = self.spec_, self._solver_class()
        spec = self._spec(
            fitted.grid if self.grid is None else self.grid,
            fitted.label_grid if self.label_grid is None else self.label_grid,
        )
        if not spec.grows_from(fitted):
            raise SpecError(
                "parameters that statistics depend on were changed after fitting: "
                f"{fitted.difference(spec)} (here is as fitted, "
                "there as set since). Call fit to start anew, or set them back"
            )
        if sign > 0:
            self._add(self._solver, spec, features, targets)
        else:
            self._solver.delete(features, targets)
        if spec != fitted:
            self._solver.amend(spec)
        if type(self._solver) is not wanted:
            self._solver = wanted(spec, self._solver.statistics)

    def _spec(self, grid: Grid, label_grid: Grid) -> Spec:
        bits = self.publication_bits
        if bits is None:
            bits = getattr(label_grid, "fraction_bits", 0) + _SPARE_PUBLICATION_BITS
        fields = {
            "gamma": self.gamma,
            "intercept": self.fit_intercept,
            "publication_bits": bits,
            **self._columns,
        }
        return Spec(dim=self.n_features_in_, grid=grid, label_grid=label_grid, **fields)

    def _solver_class(self) -> type[CholeskySolver | WoodburySolver]:
        if self.lost_columns not in _LOST_COLUMNS:
            raise InputError(f"lost_columns={self.lost_columns!r} must be one of {_LOST_COLUMNS}")
        if self.solver not in list(_SOLVERS):
            raise SpecError(f"solver={self.solver!r} is unknown; choose one of {sorted(_SOLVERS)}")
        return _SOLVERS[self.solver]

    def _add(
        self, solver: CholeskySolver | WoodburySolver, spec: Spec, features: Array, targets: Array
    ) -> None:
        lost_columns = self.lost_columns
        if lost_columns == "negligible":
            lost_columns = (
                "accept" if losses_are_negligible(spec, solver.count + len(features)) else "refuse"
            )
        try:
            solver.add(features, targets, lost_columns=lost_columns)
        except GridRangeError as problem:
            chosen = " and ".join(
                name for name in ("grid", "label_grid") if getattr(self, name) is None
            )
            if not chosen:
                raise
            raise GridRangeError(
                f"{problem} (none was given as {chosen}, so the first batch decided)"
            ) from problem

    @contextmanager
    def _unless_refused(self) -> Iterator[None]:
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    # A pickle holds the truth alone, without caches.

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "_solver" in state:
            solver = state.pop("_solver")
            state["_pickled"] = type(solver), solver.statistics
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        solver_class, statistics = state.get("_pickled", (None, None))
        super().__setstate__({name: value for name, value in state.items() if name != "_pickled"})
        if solver_class is not None:
            self._solver = solver_class(statistics.spec, statistics)


class ExactRidgeClassifier(ClassifierMixin, _ExactRidge):  # type: ignore[misc]  # scikit-learn ships no type hints
    """Ridge classifier whose head is, bit for bit, that of retraining on the retained samples.

    Each class is a column of 0 and 1; the class with the largest score wins, the first of equals.

    - `gamma`: the ridge penalty, positive.
    - `fit_intercept`: append a constant feature 1, penalised like the rest.
    - `solver`: "cholesky" (Variant A) or "woodbury" (Variant B); the same bytes, at different
      costs.
    - `grid`: the grid of the features; None chooses one from the first batch, with room for values
      up to 8 times as large. A grid is the same for all columns, so scale them to similar
      magnitudes.
    - `publication_bits`: weights are published as multiples of 2^-publication_bits.
    - `lost_columns`: what to do with a column that is not zero but rounds to zero throughout:
      "negligible" accepts it if that provably cannot move the fitted values by more than 2^-30 of
      the norm of the targets, and refuses it otherwise; "refuse" and "accept" always do.

    `partial_fit` and `forget` only change exact sums; the head is solved when it is next needed
    (`head_`, `coef_`, `predict`), and that is when a head that cannot be published is refused;
    `fit` solves at once. gamma, publication_bits, solver and lost_columns may be changed by
    `set_params` and count from the next call on; for the others call `fit`.

    The spec's labels, which the digests cover, are the classes: as they are if they are strings, 0,
    1, 2, ... if they equal these (False and True do), and their decimal form otherwise. So the
    digests are those of `expunge.solve` under such a spec.

    Fitted: `classes_` (sorted), `n_features_in_`, `spec_`, `grid_`, `statistics_`, `head_`,
    `coef_`, `intercept_`. A pickle holds these and the parameters, and nothing else of the samples.

    >>> import expunge
    >>> X, y = [[0.0, 1.0], [1.0, 0.5], [3.0, 2.0], [4.0, 2.5]], ["cat", "cat", "dog", "dog"]
    >>> model = expunge.ExactRidgeClassifier(gamma=0.5).fit(X, y)
    >>> model.predict([[0.5, 1.0], [3.5, 2.0]]).tolist()
    ['cat', 'dog']
    >>> retrained = expunge.ExactRidgeClassifier(gamma=0.5).fit(X[:3], y[:3])
    >>> model.forget(X[3:], y[3:]).head_.digest == retrained.head_.digest
    True
    >>> model.forget(X[2:], y[2:])
    Traceback (most recent call last):
    expunge.errors.ImpossibleDeletionError: there would be -1 samples of label 'dog'; nothing ...
    """

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Add samples.

        The first call needs all the classes there will ever be; later calls may repeat them.
        """
        if self.__sklearn_is_fitted__():
            if classes is not None and not np.array_equal(
                np.unique(np.asarray(classes)), self.classes_
            ):
                raise InputError(
                    f"classes={classes!r:.80} are not those of the first call to partial_fit, "
                    f"{self.classes_!r:.80}; call fit to start anew"
                )
            self._change(X, y, 1)
            return self
        if classes is None:
            raise InputError(
                "classes must be passed on the first call to partial_fit: all classes that there "
                "will ever be"
            )
        with self._unless_refused():
            self.classes_ = np.unique(np.asarray(classes))
            self._begin(X, y)
        return self

    def _checked(self, X: Any, y: Any, *, first: bool) -> tuple[Array, Array]:
        features, labels = validate_data(self, X, y, reset=first, dtype=(np.float64, np.float32))
        check_classification_targets(labels)
        if first:
            self.classes_ = self.classes_ if hasattr(self, "classes_") else np.unique(labels)
            self._columns = {"labels": _label_names(self.classes_)}
        classes = self.classes_.tolist()
        places = {label: index for index, label in enumerate(classes)}
        indices = [places.get(label, -1) for label in labels.tolist()]
        if -1 in indices:
            row = indices.index(-1)
            raise UnknownLabelError(
                f"the label of row {row} is not one of the classes {classes!r:.80}; name all of "
                "them in the first call to partial_fit (classes=), or call fit to start anew"
            )
        return np.asarray(features), np.array(indices, dtype=np.int64)

    def decision_function(self, X: Any) -> Float:
        """The scores, shape (n, classes); for two classes score[1] - score[0], shape (n,), and for
        a single class its score.
        """
        scores = _differences(self._scores(X))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        """The class of the largest score, the first of equals; shape (n,)."""
        best = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def _linear(self) -> Float:
        return _differences(self.head_.weights)


class ExactRidgeRegressor(MultiOutputMixin, RegressorMixin, _ExactRidge):  # type: ignore[misc]  # scikit-learn ships no type hints
    """Ridge regressor, for one or several outputs, whose head is, bit for bit, that of retraining
    on the retained samples.

    Parameters, laws and attributes as for ExactRidgeClassifier, and:

    - `label_grid`: the grid of the targets; None chooses one from the first batch and reports it as
      `label_grid_`. An output that is lost to the chosen one, because another is so much larger, is
      refused unless lost_columns="accept".
    - `publication_bits`: None takes the label grid's fraction bits and 5 more (40 with the default
      grid), so that weights have as much room as the targets, whatever their unit.

    >>> import expunge
    >>> model = expunge.ExactRidgeRegressor(gamma=1e-6)
    >>> for x in range(4):
    ...     model = model.partial_fit([[x]], [2.0 * x + 1.0])
    >>> model.predict([[10.0]]).round(3).tolist()
    [21.0]
    >>> before = model.head_.digest
    >>> model.partial_fit([[5.0]], [40.0]).forget([[5.0]], [40.0]).head_.digest == before
    True
    """

    def __init__(
        self,
        gamma: float = 1.0,
        *,
        fit_intercept: bool = True,
        solver: str = "cholesky",
        grid: Grid | None = None,
        label_grid: Grid | None = None,
        publication_bits: int | None = None,
        lost_columns: str = "negligible",
    ) -> None:
        self.gamma = gamma
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.grid = grid
        self.label_grid = label_grid
        self.publication_bits = publication_bits
        self.lost_columns = lost_columns

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Add samples."""
        if self.__sklearn_is_fitted__():
            self._change(X, y, 1)
            return self
        with self._unless_refused():
            self._begin(X, y)
        return self

    def _checked(self, X: Any, y: Any, *, first: bool) -> tuple[Array, Array]:
        checks = {"dtype": (np.float64, np.float32), "multi_output": True, "y_numeric": True}
        features, targets = (
            np.asarray(array) for array in validate_data(self, X, y, reset=first, **checks)
        )
        if first:
            self._output_shape = (-1,) * (targets.ndim - 1)
            self._columns = {"outputs": targets[0].size}
        return features, targets

    @property
    def label_grid_(self) -> Grid:
        """The grid of the targets, given or chosen."""
        return self.spec_.label_grid

    def predict(self, X: Any) -> Float:
        """The scores: shape (n,) if y was one-dimensional when fitting began, else (n, outputs)."""
        scores = self._scores(X)
        return scores.reshape(len(scores), *self._output_shape)


def _differences(columns: Float) -> Float:
    """The second column less the first if there are two; else the columns as they are."""
    return columns[:, 1:] - columns[:, :1] if columns.shape[1] == 2 else columns


def _label_names(classes: Array) -> tuple[str | int, ...]:
    """The spec's labels: strings as they are, 0, 1, 2, ... as such, other numbers as decimals."""
    items = classes.tolist()
    if items == list(range(len(items))):
        return tuple(range(len(items)))
    return tuple(str(int(item)) if isinstance(item, float) else str(item) for item in items)
