"""Samples as pandas, polars, PyTorch and Hugging Face's datasets hold them: the digest of the
array.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from sklearn.utils.estimator_checks import parametrize_with_checks

from expunge import (
    CholeskySolver,
    ExactRidgeClassifier,
    ExactRidgeRegressor,
    Spec,
    Statistics,
    solve,
)
from expunge.errors import (
    GridRangeError,
    InputError,
    NotFiniteError,
    ShapeError,
    UnknownLabelError,
)
from support.inputs import (
    DTYPES,
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

TABLE_TYPES = tuple(name for name in DTYPES if name != "bfloat16")
X = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
Y = np.array(LABELS)[[0, 1, 0, 1]]


@pytest.fixture(scope="session")
def pandas(library: Any) -> Any:
    return library("pandas")


@pytest.fixture(scope="session")
def polars(library: Any) -> Any:
    return library("polars")


@pytest.fixture(scope="session")
def datasets(library: Any) -> Any:
    return library("datasets")


def columns(features: Array) -> dict[str, Array]:
    return {name: features[:, index] for index, name in enumerate(NAMES)}


# -- scikit-learn's own conformance suite: with pandas there is more of it -------------------------


@parametrize_with_checks(
    [
        ExactRidgeClassifier(),
        ExactRidgeClassifier(fit_intercept=False, solver="woodbury"),
        ExactRidgeRegressor(),
        ExactRidgeRegressor(fit_intercept=False, solver="woodbury"),
    ]
)
def test_scikit_learn_conformance_with_pandas(estimator: Any, check: Any, pandas: Any) -> None:
    check(estimator)


# -- pandas ----------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(drawn=samples(TABLE_TYPES))
def test_pandas_frames(pandas: Any, drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    X, frame = as_numbers(features), pandas.DataFrame(features, columns=list(NAMES))
    series = pandas.Series(labels)
    check_same(frame, series, X, NAMES)
    check_same(frame, series.astype("category"), X, NAMES)
    check_same(frame, pandas.Categorical(labels), X, NAMES)
    check_same(frame, pandas.Index(labels), X, NAMES)
    check_same(frame, series.astype("string"), X, NAMES)
    check_same(frame.set_axis(range(3), axis=1), labels, X, ("0", "1", "2"))
    check_same(frame.astype({"dose": np.float64}), series.to_frame("kind"), X, NAMES)
    check_estimators(frame, series, X, NAMES)
    check_estimators(frame, series.astype("category"), X, NAMES)


@settings(max_examples=20)
@given(drawn=samples(tuple(name for name in TABLE_TYPES if name != "float16")))
def test_pandas_nullable_arrow_and_sparse_types(pandas: Any, drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    X, frame = as_numbers(features), pandas.DataFrame(features, columns=list(NAMES))
    arrow = pandas.ArrowDtype(pa.from_numpy_dtype(features.dtype))
    sparse = pandas.SparseDtype(features.dtype, features.dtype.type(0))
    for form in (frame.convert_dtypes(), frame.astype(arrow), frame.astype(sparse)):
        check_same(form, labels, X, NAMES)
        check_estimators(form, labels, X, NAMES)


@settings(max_examples=10)
@given(drawn=samples(TABLE_TYPES))
def test_pandas_columns_of_lists(pandas: Any, drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    column = pandas.Series(list(features))
    check_same(column, labels, as_numbers(features))
    check_same(column.to_frame("vector"), labels, as_numbers(features))
    check_same(pandas.Series(features.tolist()), labels, as_numbers(features))
    check_estimators(column.to_frame("vector"), labels, as_numbers(features))


def test_a_pandas_frame_with_its_labels_in_it(pandas: Any) -> None:
    frame = pandas.DataFrame(columns(X)).assign(id=range(4), subject="p", Label=Y)
    reference = Statistics.of(SPEC, X, Y)
    assert Statistics.of(SPEC, frame) == reference
    assert Statistics.of(SPEC, [frame[:1], frame[1:]]) == reference
    for variant in SOLVERS:
        solver = variant(SPEC)
        solver.add(frame)
        assert (solver.statistics, solver.feature_names) == (reference, NAMES)


def refused_columns(pandas: Any) -> list[tuple[Any, Any, str]]:
    missing = pandas.array([1, 2, None, 3], dtype="Int64")
    return [
        ({"dose": "a"}, ShapeError, "column 'dose' holds texts or other objects, where numbers"),
        ({"dose": 1j}, ShapeError, "column 'dose' holds complex numbers"),
        ({"dose": pandas.Timestamp("2020-01-01")}, ShapeError, "column 'dose' holds times"),
        ({"dose": pandas.Timestamp("2020-01-01", tz="UTC")}, ShapeError, "column 'dose' holds"),
        ({"dose": pandas.Categorical(list("abab"))}, ShapeError, "'dose' holds values of category"),
        ({"dose": missing}, InputError, "row 2 has no value in column 'dose'"),
        ({"dose": [1.0, np.nan, 2.0, 3.0]}, NotFiniteError, "row 1, column 'dose' of the features"),
        (
            {"dose": [0.0, 1.0, 98765.5, 2.0]},
            GridRangeError,
            "row 2, column 'dose' of the features",
        ),
        ({"dose": [[1], [2], [3], [4]]}, ShapeError, "column 'dose' holds lists"),
        ({"height": 1.0}, ShapeError, "the first table had no column 'height'"),
    ]


def test_pandas_columns_are_refused_by_name(pandas: Any) -> None:
    frame = pandas.DataFrame(columns(X))
    owners = [variant(SPEC) for variant in SOLVERS]
    for owner in owners:
        owner.add(frame, Y)
    model = ExactRidgeClassifier().fit(frame, Y)
    for change, error, message in refused_columns(pandas):
        other = frame.assign(**change)
        for owner in owners:
            check_refused(owner.add, other, Y, error, message)
            check_refused(owner.delete, other, Y, error, message)
        check_refused(model.partial_fit, other, Y, error, f"(?s){message}")
        check_refused(model.forget, other, Y, error, f"(?s){message}")
        if error is not GridRangeError:  # predictions are on no grid
            with pytest.raises(error, match=f"(?s){message}"):
                model.predict(other)


def test_pandas_names_that_cannot_be_taken(pandas: Any) -> None:
    frame = pandas.DataFrame(X, columns=["age", "dose", "age"])
    with pytest.raises(ShapeError, match="column 'age' of the features occurs twice"):
        Statistics.of(SPEC, frame, Y)
    with pytest.raises(ShapeError, match="column 1 of the features has a name that is no text"):
        Statistics.of(SPEC, frame.set_axis(["age", 1, "dose"], axis=1), Y)
    lists = pandas.DataFrame({"e": [[1, 2, 3], [1, 2, 3], [1, 2], [1, 2, 3]]})
    with pytest.raises(
        ShapeError, match=r"column 'e' holds lists of unequal length: .* row 2 has 2"
    ):
        Statistics.of(SPEC, lists, Y)


def test_a_pandas_label_that_is_missing_is_refused_by_its_row(pandas: Any) -> None:
    labels = pandas.Series(["cat", "dog", None, "cat"], name="kind")
    for form in (labels, labels.astype("category"), labels.astype("string"), labels.to_frame()):
        with pytest.raises(InputError, match="row 2 has no value in column 'kind'"):
            Statistics.of(SPEC, X, form)
        with pytest.raises(InputError, match="row 2 has no value in column 'kind'"):
            ExactRidgeClassifier().fit(X, form)


# -- polars ----------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(drawn=samples(tuple(name for name in TABLE_TYPES if name != "float16")))
def test_polars_frames(polars: Any, drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    X, frame = as_numbers(features), polars.DataFrame(columns(features))
    series = polars.Series("kind", labels.tolist())
    check_same(frame, series, X, NAMES)
    check_same(frame, series.cast(polars.Categorical), X, NAMES)
    check_same(frame, series.cast(polars.Enum(LABELS)).to_frame(), X, NAMES)
    mixed = frame.with_columns(polars.col("dose").cast(polars.Float64))
    check_same(mixed, series, X, NAMES)
    check_estimators(frame, series, X, NAMES)


@settings(max_examples=10)
@given(drawn=samples(("float64", "float32", "int64")))
def test_polars_columns_of_lists(polars: Any, drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    lists = polars.Series("vector", features.tolist())
    arrays = polars.Series("vector", features)
    for column in (lists, arrays):
        check_same(column, labels, as_numbers(features))
        check_same(column.to_frame(), labels, as_numbers(features))
    check_estimators(lists.to_frame(), labels, as_numbers(features))


def test_polars_columns_are_refused_by_name(polars: Any) -> None:
    frame = polars.DataFrame(columns(X))
    solver = CholeskySolver(SPEC)
    solver.add(frame, Y)
    day = polars.Series("dose", [1, 2, 3, 4]).cast(polars.Date)
    wrong = [
        (frame.with_columns(polars.Series("dose", list("abab"))), "column 'dose' holds String"),
        (frame.with_columns(day), "column 'dose' holds Date"),
        (
            frame.with_columns(day.cast(polars.Int32).cast(polars.Decimal(10, 2))),
            "'dose' holds Dec",
        ),
        (
            frame.with_columns(polars.Series("dose", [1, 2, None, 3])),
            "row 2 has no value in .*dose",
        ),
        (frame.select("age", "weight", "dose"), "1 is column 'weight', and was column 'dose'"),
        (frame.lazy(), "give lazy_frame.collect()"),
        (polars.DataFrame({"e": [[1, 2, 3]] * 3 + [[1]]}), "column 'e' .* row 3 has 1 entries"),
        (polars.DataFrame({"e": [[1, 2, 3]] * 3 + [[1, None, 2]]}), "row 3 has no value in column"),
    ]
    for other, message in wrong:
        check_refused(solver.add, other, Y, InputError, message)
        check_refused(solver.delete, other, Y, InputError, message)
    with pytest.raises(InputError, match="row 1 has no value in column 'labels'"):
        Statistics.of(SPEC, X, polars.Series(["cat", None, "dog", "cat"]))


# -- PyTorch ---------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(drawn=samples())
def test_tensors(torch: Any, drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    X = as_numbers(features)
    tensor = torch.tensor(X).to(getattr(torch, features.dtype.name))
    codes = torch.tensor((labels == "dog").astype(np.int64))
    assert (as_numbers(tensor.double().numpy()) == X).all()
    check_same(tensor, codes, X)
    check_same(tensor.T.contiguous().T, codes, X)
    check_same({"features": [*tensor]}, codes, X)
    if tensor.is_floating_point():
        check_same(tensor.clone().requires_grad_(), codes, X)
        check_same(torch.nn.Parameter(tensor), codes, X)
    check_estimators(tensor, labels, X)


@settings(max_examples=10)
@given(drawn=samples(("bfloat16", "float16", "float32")))
def test_data_loaders_and_dictionaries_of_tensors(torch: Any, drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    X = as_numbers(features)
    tensor = torch.tensor(X).to(getattr(torch, features.dtype.name))
    codes = torch.tensor((labels == "dog").astype(np.int64))
    data = torch.utils.data
    pairs = data.DataLoader(data.TensorDataset(tensor, codes), batch_size=7)
    rows = [{"features": row, "label": code} for row, code in zip(tensor, codes, strict=True)]
    named = data.DataLoader(rows, batch_size=11)
    check_same(pairs, None, X)
    check_same(named, None, X)
    reference = ExactRidgeClassifier(lost_columns="accept").fit(X, labels == "dog")
    model = ExactRidgeClassifier(lost_columns="accept").fit(pairs)
    assert model.head_.digest == reference.head_.digest
    assert (model.predict(named) == reference.predict(X)).all()


def test_tensors_that_cannot_be_taken(torch: Any) -> None:
    solver = CholeskySolver(SPEC)
    solver.add(torch.tensor(X), Y)
    wrong = [
        (torch.ones(4, 3, dtype=torch.complex64), "real numbers, got a tensor of torch.complex64"),
        (torch.ones(4, 3).to_sparse(), "the features are a sparse tensor; give a dense one"),
        (torch.ones(4, 3, device="meta"), "a tensor of torch.float32 on meta"),
        (torch.ones(3), r"\(one sample: features.reshape\(1, -1\)\)"),
    ]
    for tensor, message in wrong:
        check_refused(solver.add, tensor, Y, ShapeError, message)
    with pytest.raises(ShapeError, match="labels are missing"):
        solver.add(torch.ones(4, 3))
    with pytest.raises(ShapeError, match="labels must be real numbers"):
        solver.add(X, torch.ones(4, dtype=torch.complex64))


def test_a_tensor_is_brought_to_the_host_in_blocks(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    cpu = torch.Tensor.cpu

    def watched(self: Any) -> Any:
        rows.append(len(self))
        return cpu(self)

    monkeypatch.setattr(torch.Tensor, "cpu", watched)
    Statistics.of(SPEC, torch.ones(2000, 3), np.arange(2000) % 2)
    assert sum(rows) == 2000
    assert max(rows) == 512


# -- datasets --------------------------------------------------------------------------------------


def made(datasets: Any, features: Array, labels: Array, names: tuple[str, ...]) -> Any:
    """A dataset whose classes stand in the order of these names."""
    codes = [names.index(label) for label in labels.tolist()]
    kinds = datasets.Features(
        {
            "features": datasets.List(datasets.Value("float32")),
            "label": datasets.ClassLabel(names=list(names)),
            "note": datasets.Value("string"),
        }
    )
    content = {"features": features.tolist(), "label": codes, "note": ["n"] * len(labels)}
    return datasets.Dataset.from_dict(content, features=kinds)


@settings(max_examples=10)
@given(drawn=samples(("float32", "float16")))
def test_datasets_in_every_format(datasets: Any, torch: Any, drawn: tuple[Array, Array]) -> None:
    features, labels = drawn
    X = as_numbers(features)
    for names in itertools.permutations(LABELS):
        dataset = made(datasets, features, labels, names)
        for form in (None, "numpy", "torch", "arrow", "pandas", "polars"):
            check_same(dataset.with_format(form), None, X)
        check_same(dataset["features"], dataset["label"], X)
        check_same(dataset, labels, X)
        check_same(dataset.to_iterable_dataset(), None, X)
        check_estimators(dataset, None, X)
        check_same(dataset.select(range(len(X))[::-1]).select(range(len(X))[::-1]), None, X)


def test_a_dataset_is_read_batch_by_batch_with_progress(datasets: Any) -> None:
    features, labels = np.ones((9000, 3), dtype=np.float32), np.array(LABELS)[np.arange(9000) % 2]
    seen: list[int] = []
    Statistics.of(SPEC, made(datasets, features, labels, LABELS), progress=seen.append)
    assert {4096, 8192, 9000} <= set(seen)


def test_a_dataset_s_own_transform_is_respected(datasets: Any) -> None:
    dataset = made(datasets, X, Y, LABELS)
    dataset.set_transform(
        lambda batch: {"features": 2 * np.array(batch["features"]), "label": batch["label"]}
    )
    assert Statistics.of(SPEC, dataset) == Statistics.of(SPEC, 2 * X, Y)
    head = solve(Statistics.of(SPEC, X, Y))
    assert (head.scores(dataset) == head.scores(2 * X)).all()


def test_datasets_of_single_columns_have_feature_names(datasets: Any) -> None:
    dataset = datasets.Dataset.from_dict({**columns(X), "label": Y.tolist()})
    solver = CholeskySolver(SPEC)
    solver.add(dataset)
    assert (solver.feature_names, solver.statistics) == (NAMES, Statistics.of(SPEC, X, Y))
    check_refused(
        solver.add, dataset.rename_column("dose", "x"), None, ShapeError, "lacks column 'dose'"
    )


def test_labels_of_datasets_that_cannot_be_taken(datasets: Any) -> None:
    dataset = made(datasets, X, Y, LABELS)
    hidden = dataset.map(lambda _: {"label": -1}, load_from_cache_file=False)
    with pytest.raises(InputError, match="the label of row 0 is missing"):
        Statistics.of(SPEC, hidden)
    with pytest.raises(UnknownLabelError, match="the label of row 0 is not in the spec"):
        Statistics.of(Spec(dim=3, labels=("ant", "bee")), dataset)
    assert Statistics.of(Spec(dim=3, labels=(0, 1)), dataset).class_counts.tolist() == [2, 2]
    with pytest.raises(ShapeError, match="the table has no column 'label'"):
        Statistics.of(SPEC, dataset.remove_columns("label"))
    with pytest.raises(ShapeError, match="can be read only once"):
        Statistics.of(SPEC, dataset.to_iterable_dataset(), Y)


def test_pandas_columns_whose_names_are_numbers_keep_their_order(pandas: Any) -> None:
    frame = pandas.DataFrame(X)
    for variant in SOLVERS:
        solver = variant(SPEC)
        solver.add(frame, Y)
        assert solver.feature_names == ("0", "1", "2")
        check_refused(solver.delete, frame[[1, 0, 2]], Y, ShapeError, "another order")
        solver.delete(X, Y)
        assert solver.count == 0


def test_masks_and_missing_lists_in_frames(pandas: Any, polars: Any) -> None:
    masked = np.ma.masked_array(X, mask=np.eye(4, 3, dtype=bool))
    with pytest.raises(ShapeError, match="have masked values"):
        Statistics.of(SPEC, pandas.Series(list(masked)), Y)
    rows = [None, *X.tolist()[1:]]
    for frame in (pandas.DataFrame({"features": rows}), polars.DataFrame({"features": rows})):
        with pytest.raises(InputError, match="row 0 has no value in column 'features'"):
            Statistics.of(SPEC, frame, Y)


def test_targets_in_a_frame_that_are_named_as_the_labels(pandas: Any, polars: Any) -> None:
    hot = {"dog": [0.0, 1.0, 0.0, 1.0], "cat": [1.0, 0.0, 1.0, 0.0]}
    for frame in (pandas.DataFrame(hot), polars.DataFrame(hot)):
        with pytest.raises(ShapeError, match="in another order"):
            Statistics.of(SPEC, X, frame)
        assert Statistics.of(SPEC, X, frame[["cat", "dog"]]) == Statistics.of(SPEC, X, Y)


def test_codes_whose_names_a_dataset_has_lost_are_refused(datasets: Any) -> None:
    """They were taken as class indices, and every label was another."""
    kinds = datasets.Features(
        {
            "features": datasets.List(datasets.Value("float32")),
            "label": datasets.ClassLabel(names=["dog", "cat"]),
        }
    )
    whole = datasets.Dataset.from_dict({"features": X, "label": Y.tolist()}, features=kinds)
    mapped = whole.to_iterable_dataset().map(lambda row: row)
    assert mapped.features is None
    with pytest.raises(InputError, match="no longer says which class"):
        Statistics.of(SPEC, mapped)
    numbered = Spec(dim=3, labels=(0, 1))
    assert Statistics.of(numbered, mapped).count == 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_refused(torch: Any) -> None:
    nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    with pytest.raises(ShapeError, match="nested tensor"):
        Statistics.of(SPEC, nested, Y[:2])
