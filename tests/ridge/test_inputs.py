"""Samples as SciPy, PyArrow and ml_dtypes hold them, and in batches: the digest of the array."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st

from expunge import (
    CholeskySolver,
    ExactRidgeClassifier,
    ExactRidgeRegressor,
    Grid,
    Spec,
    Statistics,
    solve,
)
from expunge.errors import InputError, NotFiniteError, ShapeError, UnknownLabelError
from expunge.ridge import tables
from expunge.ridge.encoding import finite_blocks
from support.inputs import (
    LABELS,
    NAMES,
    SOLVERS,
    SPEC,
    Array,
    as_numbers,
    check_estimators,
    check_refused,
    check_same,
    samples,
)

ARROW_TYPES = ("float64", "float32", "float16", "int8", "int64", "uint8", "bool")
SPARSE_TYPES = ("float64", "float32", "int8", "int64", "uint8", "bool")
X = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
Y = np.array(LABELS)[[0, 1, 0, 1]]


def arrow_columns(features: Array) -> dict[str, pa.Array]:
    return {name: pa.array(features[:, index]) for index, name in enumerate(NAMES)}


def lists(features: Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1])


# -- every form of the same numbers ----------------------------------------------------------------


@settings(max_examples=15)
@given(samples(ARROW_TYPES), st.integers(0, 600))
def test_arrow_tables_are_the_same_numbers(drawn: tuple[Array, Array], cut: int) -> None:
    features, labels = drawn
    X, table = as_numbers(features), pa.table(arrow_columns(features))
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    check_same(table, pa.array(labels), X, NAMES)
    check_same(chunked, pa.array(labels).dictionary_encode(), X, NAMES)
    check_same(table.to_batches()[0], pa.chunked_array([labels[:1], labels[1:]]), X, NAMES)
    check_estimators(table, pa.array(labels), X, NAMES)
    check_estimators(table.to_batches()[0], pa.array(labels), X, NAMES)


@settings(max_examples=15)
@given(samples(ARROW_TYPES))
def test_arrow_lists_are_the_same_numbers(drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    X, fixed = as_numbers(features), lists(features)
    for column in (fixed, fixed.cast(pa.list_(fixed.type.value_type)), pa.chunked_array([fixed])):
        check_same(column, labels, X)
        check_same(pa.table({"features": column}), labels, X)
    check_same(
        pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(fixed.type.value_type, [3]), fixed),
        labels,
        X,
    )
    check_estimators(pa.table({"features": fixed}), labels, X)


@settings(max_examples=15)
@example((np.arange(1800.0).reshape(600, 3) % 8, np.array(LABELS * 300)), "dia")
@given(samples(SPARSE_TYPES), st.sampled_from(["csr", "csc", "coo", "lil", "dok", "dia", "bsr"]))
def test_sparse_matrices_are_the_same_numbers(drawn: tuple[Array, Array], form: str) -> None:
    features, labels = drawn
    features[features > 6] = 0
    for made in (scipy.sparse.coo_matrix(features), scipy.sparse.coo_array(features)):
        with warnings.catch_warnings():  # SciPy's advice about many diagonals; ours must not warn
            warnings.simplefilter("ignore", scipy.sparse.SparseEfficiencyWarning)
            stored = made.asformat(form)
        check_same(stored, labels, as_numbers(features))
        check_estimators(stored, labels, as_numbers(features))


@settings(max_examples=15)
@given(samples(("bfloat16",)), st.sampled_from([ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]))
def test_narrow_numbers_are_widened_exactly(drawn: tuple[Array, Array], narrow: Any) -> None:
    features, labels = drawn
    features = features.astype(narrow)
    check_same(features, labels, as_numbers(features))
    check_estimators(features, labels, as_numbers(features))


@settings(max_examples=15)
@given(samples())
def test_dictionaries_of_columns_are_the_same_numbers(drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    X = as_numbers(features)
    columns = {name: features[:, index] for index, name in enumerate(NAMES)}
    check_same({"features": features}, labels, X)
    check_same({"features": list(features), "id": labels}, labels.tolist(), X)
    check_same(columns, labels, X, NAMES)
    reference = Statistics.of(SPEC, X, labels, lost_columns="accept")
    for batch in ({"features": features, "label": labels}, {**columns, "Label": labels}):
        assert Statistics.of(SPEC, batch, lost_columns="accept") == reference


def test_a_table_that_another_library_hands_over_in_arrow_s_form() -> None:
    table = pa.table(arrow_columns(X))
    foreign = type("Relation", (), {"__arrow_c_stream__": table.__arrow_c_stream__})()
    check_same(foreign, Y, as_numbers(X), NAMES)


# -- labels ----------------------------------------------------------------------------------------


def test_real_targets_in_every_form() -> None:
    spec = Spec(dim=3, outputs=2)
    targets = np.array([[0.5, -1.0], [2.0, 0.25], [0.0, 1.0], [3.0, 1.5]])
    reference = Statistics.of(spec, X, targets)
    table = pa.table({"pain": targets[:, 0], "sleep": targets[:, 1]})
    for form in (table, table.to_batches()[0], lists(targets), targets.astype(ml_dtypes.bfloat16)):
        assert Statistics.of(spec, X, form) == reference
    model = ExactRidgeRegressor().fit(X, table)
    assert model.head_.digest == ExactRidgeRegressor().fit(X, targets).head_.digest
    one = pa.table({"pain": targets[:, 0]})
    assert Statistics.of(Spec(dim=3, outputs=1), X, one) == Statistics.of(
        Spec(dim=3, outputs=1), X, targets[:, 0]
    )
    assert ExactRidgeRegressor().fit(X, one).predict(X).shape == (4, 1)


def test_class_indices_in_every_form() -> None:
    reference = Statistics.of(SPEC, X, Y)
    indices = np.array([0, 1, 0, 1])
    forms = [pa.array(indices), pa.array(indices.astype(bool)), pa.table({"y": indices})]
    assert all(Statistics.of(SPEC, X, form) == reference for form in forms)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (
            pa.array(["cat", None, "dog", "cat"]),
            InputError,
            "row 1 has no value in column 'labels'",
        ),
        (pa.array([0, 1, 0, None]), InputError, "row 3 has no value in column 'labels'"),
        (pa.table({"kind": ["cat", "dog", None, "cat"]}), InputError, "row 2 .* column 'kind'"),
        (pa.array(["cat", "dog", "eel", "cat"]), UnknownLabelError, "the label of row 2 is not"),
        (scipy.sparse.csr_array(np.eye(4)), ShapeError, r"labels are sparse \(csr_array\)"),
        (pa.array(np.array([0, 1, 0, 1], "datetime64[D]")), UnknownLabelError, "label of row 0"),
    ],
)
def test_labels_that_cannot_be_taken(labels: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as refusal:
        Statistics.of(SPEC, X, labels)
    assert "eel" not in str(refusal.value)


# -- batches ---------------------------------------------------------------------------------------


def in_batches(labelled: bool = True) -> list[Any]:
    """Four samples in batches of every form."""
    table = pa.table({**arrow_columns(X), "label": Y})
    return [
        {"features": X[:1], "label": Y[:1]},
        (X[1:2], Y[1:2]),
        table.slice(2, 1),
        table.slice(3).to_batches()[0],
    ]


def test_batches_may_be_pairs_tables_and_dictionaries() -> None:
    reference = Statistics.of(SPEC, X, Y)
    assert Statistics.of(SPEC, in_batches()) == reference
    for variant in SOLVERS:
        solver = variant(SPEC)
        solver.add(iter(in_batches()))
        assert (solver.statistics, solver.feature_names) == (reference, NAMES)
        solver.delete(in_batches())
        assert solver.count == 0


def test_a_head_predicts_batches_as_they_come() -> None:
    head = solve(Statistics.of(SPEC, X, Y))

    def batches() -> Iterator[Any]:
        yield [X[:2]]
        yield X[2:3], Y[2:3]
        yield pa.table(arrow_columns(X[3:]))

    assert (head.scores(batches()) == head.scores(X)).all()
    assert head.scores(iter([])).shape == (0, 2)


def test_progress_counts_samples_over_batches() -> None:
    seen: list[int] = []
    Statistics.of(SPEC, in_batches(), progress=seen.append)
    assert seen[-1] == 4
    assert seen == sorted(seen)


def test_rows_are_numbered_over_batches() -> None:
    good = {"features": X, "label": Y}
    bad = pa.table({**arrow_columns(X), "dose": pa.array([1.0, 2.0, None, 3.0]), "label": Y})
    with pytest.raises(InputError, match="row 6 has no value in column 'dose'"):
        Statistics.of(SPEC, [good, bad])
    late = pa.table({**arrow_columns(X), "label": pa.array(["cat", None, "dog", "cat"])})
    with pytest.raises(InputError, match="row 5 has no value in column 'label'"):
        Statistics.of(SPEC, [good, late])
    head = solve(Statistics.of(SPEC, X, Y))
    with pytest.raises(NotFiniteError, match="row 4, column 0 of the features is nan"):
        head.predict(iter([X, np.full((1, 3), np.nan)]))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (pa.table(arrow_columns(X)), "labels are missing: the table has no column 'label'"),
        ({"features": X}, "labels are missing"),
        (scipy.sparse.csr_array(X), "labels are missing"),
        ({"features": X, "label": Y, "labels": Y}, "columns 'label' and 'labels' could both"),
        ({"left": X, "right": X, "label": Y}, "column 'left' holds lists, and so must be the only"),
        (
            {"a": X[:, 0], "b": X[:2, 0], "c": X[:, 1], "label": Y},
            r"column 'b' has the shape \(2,\)",
        ),
        ([[X, Y, Y]], "batch 0 is not a pair"),
    ],
)
def test_batches_that_cannot_be_taken(features: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Statistics.of(SPEC, features)


# -- columns that are refused by name --------------------------------------------------------------


def table_with(column: Any, name: str = "dose") -> pa.Table:
    return pa.table({**arrow_columns(X), name: column})


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (table_with(["a", "b", "c", "d"]), ShapeError, "column 'dose' holds string, where numbers"),
        (table_with(pa.array([1, 2, None, 3])), InputError, "row 2 has no value in column 'dose'"),
        (table_with(pa.array([1, 2, 3, 4]).cast(pa.timestamp("s"))), ShapeError, "column 'dose'"),
        (table_with(pa.array([1, 2, 3, 4]).cast(pa.decimal128(20))), ShapeError, "column 'dose'"),
        (table_with(pa.array(Y).dictionary_encode()), ShapeError, "column 'dose' holds dictionary"),
        (table_with([[1], [2], [3], [4]]), ShapeError, "column 'dose' holds lists, and so must"),
        (table_with([1.0, np.nan, 2.0, 3.0]), NotFiniteError, "row 1, column 'dose' of the"),
        (pa.table({"e": [[1, 2, 3]] * 3 + [[1, 2]]}), ShapeError, "'e' .* row 3 has 2 entries"),
        (pa.table({"e": [[1, 2, 3]] * 3 + [None]}), InputError, "row 3 has no value in column 'e'"),
        (pa.table({"e": [[1, 2, 3]] * 3 + [[1, None, 2]]}), InputError, "row 3 has no value in"),
        (pa.table({"e": [["a", "b", "c"]] * 4}), ShapeError, "column 'e' holds string"),
        (
            pa.table([pa.array(X[:, i]) for i in range(3)], names=["age", "dose", "age"]),
            ShapeError,
            "column 'age' of the features occurs twice",
        ),
        (table_with(X[:, 0], "height"), ShapeError, r"got \(4, 4\): the table has column 'age',"),
        (table_with([1e9, 0, 0, 0]), InputError, "row 0, column 'dose' of the features is beyond"),
        (table_with([1e-20, 0, 0, 0]), InputError, "column 'dose' of the features is lost"),
        (scipy.sparse.csr_array(X.astype(complex)), ShapeError, "a sparse array of complex128"),
        (scipy.sparse.coo_array(X[0]), ShapeError, r"two dimensions, got \(3,\)"),
        ({"e": [[1, 2, 3]] * 3 + [[1, 2]]}, ShapeError, "column 'e' .* row 3 has 2 entries"),
        ({"e": [["a", "b", "c"]] * 4}, ShapeError, "column 'e' holds lists of something else"),
    ],
)
def test_columns_that_cannot_be_taken(table: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        Statistics.of(SPEC, table, Y)


def test_names_that_look_like_cells_are_not_shown() -> None:
    names = ["61.5", "a text that is far too long to be the name of a column", "weight"]
    table = pa.table([pa.array(["x"] * 4), *[pa.array(X[:, i]) for i in (1, 2)]], names=names)
    with pytest.raises(ShapeError, match="column 0 holds string") as refusal:
        Statistics.of(SPEC, table, Y)
    assert "61.5" not in str(refusal.value)


def test_a_table_of_no_rows_and_a_table_of_no_columns() -> None:
    empty = [pa.table(arrow_columns(X[:0])), pa.table({"e": pa.array([], pa.list_(pa.float32()))})]
    for table in (*empty, scipy.sparse.csr_array((0, 3)), {"features": X[:0]}):
        assert Statistics.of(SPEC, table, Y[:0]).count == 0
    with pytest.raises(ShapeError, match=r"got \(0, 0\)"):
        Statistics.of(SPEC, pa.table({}), Y[:0])


# -- reading in blocks -----------------------------------------------------------------------------


def test_a_sparse_matrix_is_never_dense_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    toarray = scipy.sparse.csr_array.toarray

    def watched(self: Any, *arguments: Any, **named: Any) -> Any:
        rows.append(self.shape[0])
        return toarray(self, *arguments, **named)

    monkeypatch.setattr(scipy.sparse.csr_array, "toarray", watched)
    matrix = scipy.sparse.random_array((9000, 3), density=0.1, format="csr", rng=1)
    labels = np.arange(9000) % 2
    head = solve(Statistics.of(SPEC, matrix, labels))
    solver = CholeskySolver(SPEC)
    solver.add(matrix, labels)
    solver.delete(matrix, labels)
    head.predict(matrix)
    assert sum(rows) == 4 * 9000
    assert max(rows) <= 4096


def test_blocks_are_the_same_whatever_the_form_and_order() -> None:
    forms = [X, np.asfortranarray(X), X.tolist(), pa.table(arrow_columns(X)), iter([X])]
    for form in forms:
        blocks = list(finite_blocks(SPEC, form, 3))
        assert all(block.flags.c_contiguous and block.dtype == np.float64 for block in blocks)
        assert np.concatenate(blocks).tolist() == X.tolist()


def test_nothing_optional_is_imported_until_it_is_met() -> None:
    code = (
        "import sys, expunge; expunge.Statistics.of(expunge.Spec(dim=1, labels=('a', 'b')), "
        "[[1.0]], ['a']); print(*sys.modules)"
    )
    made = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    optional = {"pandas", "polars", "pyarrow", "torch", "datasets", "ml_dtypes", "sklearn"}
    assert optional.isdisjoint(made.stdout.split())


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table(arrow_columns(X))
    foreign = type("Relation", (), {"__arrow_c_stream__": table.__arrow_c_stream__})()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        ImportError, match=r"Relation needs pyarrow: pip install 'expunge\[parquet\]'"
    ):
        tables.frame_of(foreign)


# -- what an attacker found ------------------------------------------------------------------------


@pytest.mark.parametrize("variant", SOLVERS)
@pytest.mark.parametrize("count", [5, 6000])
def test_a_stream_of_arrow_that_can_be_read_once_is_read_once(variant: Any, count: int) -> None:
    """It was emptied by a first look, and nothing was added or forgotten."""
    features = np.arange(3 * count, dtype=np.float64).reshape(count, 3) % 7 - 3
    labels = np.array(LABELS)[np.arange(count) % 2]
    alone = pa.table(arrow_columns(features))
    whole = alone.append_column("label", pa.array(labels))
    expected = Statistics.of(SPEC, features, labels)
    solver = variant(SPEC)
    solver.add(whole.to_reader())
    assert solver.statistics == expected
    solver.delete(alone.to_reader(), labels)
    assert solver.count == 0
    model = ExactRidgeClassifier(grid=Grid()).fit(alone.to_reader(), labels)
    assert model.statistics_ == Statistics.of(model.spec_, features, labels)
    assert model.forget(alone.slice(0, 2).to_reader(), labels[:2]).statistics_.count == count - 2


MASKED = np.ma.masked_array(X, mask=np.eye(4, 3, dtype=bool))
HIDDEN = np.ma.masked_array(np.array([0, 1, 0, 1]), mask=[True, False, False, False])


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (MASKED, Y),
        (list(MASKED), Y),
        ({"features": MASKED, "label": Y}, None),
        ({"features": list(MASKED), "label": Y}, None),
        ({name: MASKED[:, index] for index, name in enumerate(NAMES)} | {"label": Y}, None),
        ({"features": X, "label": HIDDEN}, None),
        (X, HIDDEN),
        (X, list(HIDDEN)),
        (iter([(MASKED, Y)]), None),
    ],
    ids=["array", "list", "dict", "lists in dict", "columns", "label", "y", "y list", "batches"],
)
@pytest.mark.parametrize("taker", ["statistics", "classifier"])
def test_what_a_mask_hides_never_enters(features: Any, labels: Any, taker: str) -> None:
    if isinstance(features, Iterator):
        features = iter([(MASKED, Y)])
    take: Any = ExactRidgeClassifier(grid=Grid()).fit
    if taker == "statistics":
        take = partial(Statistics.of, SPEC)
    with pytest.raises(ShapeError, match="have masked values"):
        take(features, labels)


NOBODYS = "Erika Mustermann 1961"


@pytest.mark.parametrize(
    "features",
    [
        np.array([[NOBODYS, 1.0], [2.0, 3.0]], dtype=object),
        [[NOBODYS, "1"], ["2", "3"]],
        np.array([[NOBODYS, "1"], ["2", "3"]]),
        np.array([["2026-01-01", "2026-01-02"]] * 2, dtype="datetime64[D]"),
        np.array([[1 + 2j, 5.5], [1, 2]]),
    ],
    ids=["object", "list", "texts", "times", "complex"],
)
def test_estimators_show_no_cell_of_what_is_no_number(features: Any) -> None:
    model = ExactRidgeClassifier(grid=Grid()).fit(np.eye(2), ["a", "b"])
    regressor = ExactRidgeRegressor().fit(np.eye(2), [0.0, 1.0])
    calls: list[Any] = [
        lambda: ExactRidgeClassifier().fit(features, ["a", "b"]),
        lambda: model.partial_fit(features, ["a", "b"]),
        lambda: model.forget(features, ["a", "b"]),
        lambda: model.predict(features),
        lambda: regressor.fit(np.eye(2), np.asarray(features)),
    ]
    before = model.head_.digest
    for call in calls:
        with pytest.raises(InputError) as refusal:
            call()
        assert not any(part in str(refusal.value) for part in ("Erika", "2026", "5.5"))
    assert model.head_.digest == before


def test_a_missing_target_is_refused_by_its_row() -> None:
    with pytest.raises(InputError, match="the target of row 1 is missing"):
        ExactRidgeClassifier().fit(np.eye(2), ["a", None])


@pytest.mark.parametrize("variant", SOLVERS)
def test_a_table_in_a_dictionary_keeps_its_names(variant: Any) -> None:
    table = pa.table(arrow_columns(X))
    other = table.select(NAMES[::-1])
    solver = variant(SPEC)
    solver.add({"features": table, "label": Y})
    assert solver.feature_names == NAMES
    check_refused(solver.delete, {"features": other, "label": Y}, None, ShapeError, "another order")
    model = ExactRidgeClassifier(grid=Grid()).fit({"features": table, "label": Y})
    assert tuple(model.feature_names_in_) == NAMES
    for wrong in ({"features": other, "label": Y}, iter([(other, Y)])):
        with pytest.raises(ShapeError, match="another order"):
            model.forget(wrong)
    with pytest.raises(ShapeError, match="another order"):
        model.predict(dict.fromkeys(NAMES[::-1], X[:, 0]))
    assert model.forget(iter([(table.slice(0, 2), Y[:2])])).statistics_.count == 2


def test_tables_of_one_prediction_must_agree() -> None:
    table = pa.table(arrow_columns(X))
    head = solve(Statistics.of(SPEC, table, Y))
    with pytest.raises(ShapeError, match="another order"):
        head.predict(iter([table, table.select(NAMES[::-1])]))


def test_targets_named_as_the_labels_must_be_in_their_order() -> None:
    hot = {"cat": [1.0, 0.0, 1.0, 0.0], "dog": [0.0, 1.0, 0.0, 1.0]}
    assert Statistics.of(SPEC, X, pa.table(hot)) == Statistics.of(SPEC, X, Y)
    with pytest.raises(ShapeError, match="in another order"):
        Statistics.of(SPEC, X, pa.table(hot).select(["dog", "cat"]))


def test_repeated_entries_of_a_sparse_matrix_are_added_up_exactly() -> None:
    sparse = scipy.sparse.coo_array(
        (np.array([50, 100, 100], dtype=np.int8), ([0, 1, 1], [0, 1, 1])), shape=(2, 3)
    )
    dense = np.array([[50.0, 0, 0], [0, 200.0, 0]])
    spec = Spec(dim=3, labels=LABELS, grid=Grid(2, 20))
    assert Statistics.of(spec, sparse, Y[:2]) == Statistics.of(spec, dense, Y[:2])


@pytest.mark.parametrize("form", ["arrow", "dict"])
def test_a_first_list_that_is_missing_is_refused_by_its_row(form: str) -> None:
    rows = [None, *X.tolist()[1:]]
    features = {"features": rows, "label": Y}
    with pytest.raises(InputError, match="row 0 has no value"):
        Statistics.of(SPEC, pa.table(features) if form == "arrow" else features)
