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

import datetime
import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from importlib import import_module
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data

from expunge.errors import (
    GridRangeError,
    InputError,
    LostColumnError,
    ShapeError,
    SpecError,
    UnknownLabelError,
)
from expunge.exact import Grid
from expunge.ridge import inputs
from expunge.ridge.encoding import gathered, require_finite
from expunge.ridge.feature_names import difference, is_cell
from expunge.ridge.head import Head
from expunge.ridge.inputs import is_in_batches
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.tables import Blocks, frame_of, is_from, named, names_of, readable_again
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
        if 0.0 < _largest(output) <= grid.step / 2.0:
            raise LostColumnError(
                f"output {column} of the targets is lost to {grid!r}, which the largest output of "
                "the first batch asks for: every value of it rounds to zero. Scale the outputs to "
                "similar magnitudes, give a label_grid, or pass "
                "lost_columns='accept' if that output does not matter"
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


def _plain(X: Any) -> Any:
    """Features as scikit-learn takes them, if another library holds them; sparse ones remain so."""
    matrix = None if issparse(X) else inputs.features_of(X, 0)
    if isinstance(matrix, Blocks):
        return np.asarray(matrix)
    if not issparse(X):
        _require_numbers(X, "features")
    return X


def _require_numbers(values: Any, what: str) -> None:
    """Refuse what scikit-learn would try to read as numbers, and show in its error."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        return  # scikit-learn says what has no shape, and shows nothing of it
    kinds = {"U": "texts", "S": "texts", "M": "times", "m": "times"}
    content = kinds.get(array.dtype.kind)
    if array.dtype.kind == "c":
        raise ShapeError(f"Complex data not supported: the {what} must be real numbers")
    if array.dtype.kind == "O":
        wrong = [entry for entry, item in enumerate(array.ravel()) if _is_no_number(item)]
        content = f"something else than numbers (entry {wrong[0]} is the first)" if wrong else None
    if content is not None:
        raise ShapeError(f"the {what} hold {content}, where real numbers are needed: convert them")


def _is_no_number(item: object) -> bool:
    return isinstance(item, (str, bytes, Decimal, datetime.date, np.datetime64, np.timedelta64))


def _with_names(X: Any) -> Any:
    """A table whose names scikit-learn can see."""
    is_batch = is_from(X, "pyarrow", "RecordBatch")
    return import_module("pyarrow").table(X) if is_batch else X


Float = NDArray[np.float64]
Array = NDArray[Any]

_CHECKS = {"dtype": (np.float64, np.float32), "accept_sparse": "csr"}

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

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
        table, X, _ = self._named(X, first=False, labelled=False)
        if table is None:
            return self.head_.scores(validate_data(self, _plain(X), reset=False, **_CHECKS))
        return self.head_.scores(check_array(table, estimator=self, input_name="X", **_CHECKS))

    def _validated(self, X: Any, y: Any, *, first: bool, **checks: Any) -> tuple[Any, Any]:
        """Features, which may be sparse, and targets, as scikit-learn wants them; names and number
        of features are set the first time and checked later.
        """
        table, X, own = self._named(X, first=first, labelled=y is None)
        y = own if y is None else y
        targets = None if y is None else self._targets(y)
        if table is None or y is None:
            return tuple(validate_data(self, _plain(X), targets, reset=first, **_CHECKS, **checks))
        return tuple(check_X_y(table, targets, estimator=self, **_CHECKS, **checks))

    def _named(self, X: Any, *, first: bool, labelled: bool) -> tuple[Array | None, Any, Any]:
        """The numbers of what has names, which are set or checked, or None; X, read at most once;
        and the labels in it if it comes in batches.
        """
        X = readable_again(X)
        if not is_in_batches(X):
            return self._table(X, first=first), X, None
        array, labels, names = gathered(X, labelled=labelled)
        if names is None:
            return None, array, labels
        self._take_names(names, first=first)
        return array, array, labels

    def _take_names(self, names: tuple[str, ...], *, first: bool) -> None:
        """Set or check the names of features that came in batches."""
        if first:
            self.feature_names_in_ = np.array(names, dtype=object)
            self.n_features_in_ = len(names)
            return
        fitted = tuple(getattr(self, "feature_names_in_", ()))
        if (fitted and fitted != names) or len(names) != self.n_features_in_:
            which = f"{difference(fitted, names)}. " if fitted else ""
            raise ShapeError(
                f"{which}Give the {self.n_features_in_} columns that it was fitted with, in their "
                "order. Nothing was changed"
            )

    def _table(self, X: Any, *, first: bool) -> Array | None:
        """The numbers of a table whose columns have names, which are set or checked; None for
        anything else.
        """
        frame = None if issparse(X) else frame_of(X)
        matrix = None if frame is None else inputs.features_of(X, 0)
        names = None if matrix is None else names_of(matrix)
        if matrix is None or names is None:
            return None
        require_finite(matrix)
        try:
            validate_data(self, _with_names(X), reset=first, skip_check_array=True)
        except ValueError as problem:
            raise self._other_names(names, problem) from problem
        return np.asarray(matrix)

    def _other_names(self, names: tuple[str, ...], problem: ValueError) -> ShapeError:
        """scikit-learn's refusal of a table, with its columns and the remedy."""
        fitted = tuple(getattr(self, "feature_names_in_", ()))
        which = f"{difference(fitted, names)}. " if fitted and fitted != names else ""
        hidden = any(is_cell(name) for name in (*fitted, *names))  # they may be personal
        refusal = "" if hidden else f"{str(problem).rstrip()}\n\n"
        return ShapeError(
            f"{refusal}{which}Select the columns that it was fitted with, in "
            "their order: X[model.feature_names_in_]. Nothing was changed"
        )

    def _targets(self, y: Any) -> Any:
        """Targets as scikit-learn takes them, if another library holds them."""
        targets = inputs.labels_of(y)
        if isinstance(targets, inputs.ClassCodes):
            classes = self.classes_.tolist() if hasattr(self, "classes_") else None
            targets = targets.under(classes)
        targets = y if targets is None else targets
        items = targets if isinstance(targets, (list, tuple, np.ndarray)) else ()
        missing = [row for row, item in enumerate(items) if item is None]
        if missing:
            raise InputError(
                f"the target of row {missing[0]} is missing: fill it in, or drop that sample. "
                "Nothing was changed"
            )
        return targets

    def fit(self, X: Any, y: Any = None) -> Self:
        """Start anew from these samples; the head is that of `partial_fit` over any split of them.

        A classifier's classes are those of y. The head is solved at once.

        Parameters
        ----------
        X : array-like, table, tensor or sparse matrix of shape (n, n_features_in_)
            Features, as numpy, pandas, polars, PyArrow, PyTorch or SciPy hold them. Without y: a
            Hugging Face dataset, a DataLoader or an iterator of batches that hold their labels.
        y : array-like, column or tensor of shape (n,) or (n, outputs), optional
            Targets.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        InputError, SolveError
            If X or y cannot be taken, or no head can be published. The estimator is as it was.

        Examples
        --------
        >>> import expunge
        >>> expunge.ExactRidgeRegressor(gamma=1e-6).fit([[0.0], [1.0]], [1.0, 3.0]).coef_.round(3)
        array([2.])
        """
        with self._unless_refused():
            self.__dict__.pop("classes_", None)
            self._begin(X, y)
            self._solver.head()
        return self

    def forget(self, X: Any, y: Any = None) -> Self:
        """Delete samples that were added: the exact inverse of `partial_fit`.

        Parameters
        ----------
        X, y
            The same features and targets that the samples were added with, in any form that `fit`
            takes.

        Returns
        -------
        self
            The estimator of what is left.

        Raises
        ------
        ImpossibleDeletionError
            If these samples provably were not added; nothing was deleted. Arithmetic cannot see
            every such mistake.
        InputError
            If X or y cannot be taken, or a table has other columns than the first one.

        Examples
        --------
        >>> import expunge
        >>> model = expunge.ExactRidgeRegressor().fit([[0.0], [1.0]], [1.0, 3.0])
        >>> model.forget([[1.0]], [3.0]).statistics_.count
        1
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
            self._solver.delete(self._with_columns(features), targets)
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
                "accept"
                if losses_are_negligible(spec, solver.count + features.shape[0])
                else "refuse"
            )
        try:
            solver.add(self._with_columns(features), targets, lost_columns=lost_columns)
        except GridRangeError as problem:
            chosen = " and ".join(
                name for name in ("grid", "label_grid") if getattr(self, name) is None
            )
            if not chosen:
                raise
            raise GridRangeError(
                f"{problem} (none was given as {chosen}, so the first batch decided)"
            ) from problem

    def _with_columns(self, features: Array) -> Any:
        """Features whose columns errors call by the names that the estimator was fitted with."""
        if issparse(features):
            return features
        return named(features, getattr(self, "feature_names_in_", None))

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

    Parameters
    ----------
    gamma : float, default=1.0
        The ridge penalty, positive.
    fit_intercept : bool, default=True
        Append a constant feature 1, penalised like the rest.
    solver : {"cholesky", "woodbury"}, default="cholesky"
        Variant A or Variant B: the same bytes, at different costs.
    grid : Grid, optional
        The grid of the features, one for all columns, so scale them to similar magnitudes. None
        chooses one from the first batch, with room for values up to 8 times as large.
    publication_bits : int, default=40
        Weights are published as multiples of 2^-publication_bits.
    lost_columns : {"negligible", "refuse", "accept"}, default="negligible"
        What to do with a column that is not zero but rounds to zero throughout. "negligible"
        accepts it if that provably cannot move the fitted values by more than 2^-30 of the norm of
        the targets, and refuses it otherwise; "refuse" and "accept" always do.

    Attributes
    ----------
    classes_ : ndarray, shape (classes,)
        The classes, sorted.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : ndarray of str, shape (n_features_in_,)
        The names of the columns, if the first X was a table whose columns all have texts as names.
    spec_ : Spec
        What the head is solved under.
    grid_ : Grid
        The grid of the features, given or chosen.
    statistics_ : Statistics
        The exact statistics of what is retained.
    head_ : Head
        The certified head of what is retained, with weights, digest and error bound.
    coef_ : ndarray of float64, shape (classes, n_features_in_)
        The weights; shape (1, n_features_in_) for two classes.
    intercept_ : ndarray of float64, shape (classes,)
        The weights of the constant feature; shape (1,) for two classes, zero if there is none.

    Notes
    -----
    `partial_fit` and `forget` only change exact sums; the head is solved when it is next needed
    (`head_`, `coef_`, `predict`), and that is when a head that cannot be published is refused;
    `fit` solves at once. gamma, publication_bits, solver and lost_columns may be changed by
    `set_params` and count from the next call on; for the others call `fit`.

    The spec's labels, which the digests cover, are the classes: as they are if they are strings, 0,
    1, 2, ... if they equal these (False and True do), and their decimal form otherwise. So the
    digests are those of `expunge.solve` under such a spec. A pickle holds parameters, attributes
    and nothing else of the samples.

    Examples
    --------
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

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Add samples; any split and any order of the same samples give the same head.

        Parameters
        ----------
        X, y
            Features and labels in any form that `fit` takes.
        classes : array-like of shape (classes,), optional
            All classes that there will ever be. The first call needs them; later calls may repeat
            them.

        Returns
        -------
        self
            The estimator of all samples so far.

        Raises
        ------
        InputError
            If X or y cannot be taken, or a table has other columns than the first one, by column
            name. The estimator is as it was.

        Examples
        --------
        >>> import expunge
        >>> model = expunge.ExactRidgeClassifier()
        >>> model.partial_fit([[0.0]], ["no"], classes=["no", "yes"]).classes_.tolist()
        ['no', 'yes']
        >>> model.partial_fit([[1.0]], ["yes"]).statistics_.count
        2
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
        features, labels = self._validated(X, y, first=first)
        check_classification_targets(labels)
        if first:
            self.classes_ = self.classes_ if hasattr(self, "classes_") else np.unique(labels)
            self._columns = {"labels": _label_names(self.classes_)}
        classes = self.classes_.tolist()
        positions = {label: index for index, label in enumerate(classes)}
        indices = [positions.get(label, -1) for label in labels.tolist()]
        if -1 in indices:
            row = indices.index(-1)
            raise UnknownLabelError(
                f"the label of row {row} is not one of the classes {classes!r:.80}; name all of "
                "them in the first call to partial_fit (classes=), or call fit to start anew"
            )
        return features, np.array(indices, dtype=np.int64)

    def decision_function(self, X: Any) -> Float:
        """The scores of the classes: `predict` gives the class of the largest.

        Parameters
        ----------
        X : array-like, table, tensor or sparse matrix of shape (n, n_features_in_)
            Features, as numpy, pandas, polars, PyArrow, PyTorch or SciPy hold them.

        Returns
        -------
        ndarray of float64, shape (n, classes)
            For two classes score[1] - score[0], shape (n,); for a single class its score.

        Examples
        --------
        >>> import expunge
        >>> model = expunge.ExactRidgeClassifier().fit([[-1.0], [1.0]], ["no", "yes"])
        >>> bool(model.decision_function([[2.0]])[0] > 0)
        True
        """
        scores = _differences(self._scores(X))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        """The class of the largest score, the first of equals.

        Parameters
        ----------
        X : array-like, table, tensor or sparse matrix of shape (n, n_features_in_)
            Features, as numpy, pandas, polars, PyArrow, PyTorch or SciPy hold them.

        Returns
        -------
        ndarray, shape (n,)
            One of `classes_` for each row.

        Examples
        --------
        >>> import expunge
        >>> model = expunge.ExactRidgeClassifier().fit([[-1.0], [1.0]], ["no", "yes"])
        >>> model.predict([[2.0]]).tolist()
        ['yes']
        """
        best = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def _linear(self) -> Float:
        return _differences(self.head_.weights)


class ExactRidgeRegressor(MultiOutputMixin, RegressorMixin, _ExactRidge):  # type: ignore[misc]  # scikit-learn ships no type hints
    """Ridge regressor, for one or several outputs, whose head is, bit for bit, that of retraining
    on the retained samples.

    Parameters
    ----------
    gamma : float, default=1.0
        The ridge penalty, positive.
    fit_intercept : bool, default=True
        Append a constant feature 1, penalised like the rest.
    solver : {"cholesky", "woodbury"}, default="cholesky"
        Variant A or Variant B: the same bytes, at different costs.
    grid : Grid, optional
        The grid of the features, one for all columns, so scale them to similar magnitudes. None
        chooses one from the first batch, with room for values up to 8 times as large.
    label_grid : Grid, optional
        The grid of the targets. None chooses one from the first batch; an output that is lost to
        it, because another is so much larger, is refused unless lost_columns="accept".
    publication_bits : int, optional
        Weights are published as multiples of 2^-publication_bits. None takes the label grid's
        fraction bits and 5 more (40 with the default grid), so that weights have as much room as
        the targets, whatever their unit.
    lost_columns : {"negligible", "refuse", "accept"}, default="negligible"
        What to do with a column that is not zero but rounds to zero throughout. "negligible"
        accepts it if that provably cannot move the fitted values by more than 2^-30 of the norm of
        the targets, and refuses it otherwise; "refuse" and "accept" always do.

    Attributes
    ----------
    n_features_in_ : int
        The number of features.
    feature_names_in_ : ndarray of str, shape (n_features_in_,)
        The names of the columns, if the first X was a table whose columns all have texts as names.
    spec_ : Spec
        What the head is solved under.
    grid_ : Grid
        The grid of the features, given or chosen.
    label_grid_ : Grid
        The grid of the targets, given or chosen.
    statistics_ : Statistics
        The exact statistics of what is retained.
    head_ : Head
        The certified head of what is retained, with weights, digest and error bound.
    coef_ : ndarray of float64, shape (outputs, n_features_in_)
        The weights; shape (n_features_in_,) if y was one-dimensional.
    intercept_ : ndarray of float64, shape (outputs,)
        The weights of the constant feature; a number if y was one-dimensional, zero if there is
        none.

    Notes
    -----
    When heads are solved and what `set_params` may change is as for ExactRidgeClassifier.

    Examples
    --------
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
        super().__init__(
            gamma,
            fit_intercept=fit_intercept,
            solver=solver,
            grid=grid,
            publication_bits=publication_bits,
            lost_columns=lost_columns,
        )
        self.label_grid = label_grid

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add samples; any split and any order of the same samples give the same head.

        Parameters
        ----------
        X, y
            Features and targets in any form that `fit` takes.

        Returns
        -------
        self
            The estimator of all samples so far.

        Raises
        ------
        InputError
            If X or y cannot be taken, or a table has other columns than the first one, by column
            name. The estimator is as it was.

        Examples
        --------
        >>> import expunge
        >>> model = expunge.ExactRidgeRegressor().partial_fit([[0.0]], [1.0])
        >>> model.partial_fit([[1.0]], [3.0]).statistics_.count
        2
        """
        if self.__sklearn_is_fitted__():
            self._change(X, y, 1)
            return self
        with self._unless_refused():
            self._begin(X, y)
        return self

    def _checked(self, X: Any, y: Any, *, first: bool) -> tuple[Array, Array]:
        features, targets = self._validated(X, y, first=first, multi_output=True, y_numeric=True)
        if first:
            self._output_shape = (-1,) * (targets.ndim - 1)
            self._columns = {"outputs": targets[0].size}
        return features, targets

    def _targets(self, y: Any) -> Any:
        y = readable_again(y)
        table = frame_of(y)
        targets = super()._targets(y) if table is None else np.asarray(inputs.features_of(y, 0))
        _require_numbers(targets, "targets")
        return targets

    @property
    def label_grid_(self) -> Grid:
        """The grid of the targets, given or chosen."""
        return self.spec_.label_grid

    def predict(self, X: Any) -> Float:
        """X @ coef_.T + intercept_: the head's scores.

        Parameters
        ----------
        X : array-like, table, tensor or sparse matrix of shape (n, n_features_in_)
            Features, as numpy, pandas, polars, PyArrow, PyTorch or SciPy hold them.

        Returns
        -------
        ndarray of float64, shape (n,) or (n, outputs)
            One-dimensional if y was when fitting began.

        Examples
        --------
        >>> import expunge
        >>> model = expunge.ExactRidgeRegressor(gamma=1e-6).fit([[0.0], [1.0]], [1.0, 3.0])
        >>> model.predict([[2.0]]).round(3).tolist()
        [5.0]
        """
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
