"""The spec: an immutable, validated value with four digests that change exactly when they
should.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Grid, Spec
from expunge.errors import ExpungeError, SpecError, SpecMismatchError
from expunge.ridge.spec import recommended_fewest_samples

DIGESTS = ("data_digest", "labels_digest", "head_digest", "policy_digest")


def classification(**changes: Any) -> Spec:
    fields: dict[str, Any] = {"dim": 3, "labels": ("cat", "dog")}
    return Spec(**fields | changes)


def regression(**changes: Any) -> Spec:
    fields: dict[str, Any] = {"dim": 3, "outputs": 2}
    return Spec(**fields | changes)


def digests(spec: Spec) -> dict[str, str]:
    return {name: getattr(spec, name) for name in DIGESTS}


def changed(left: Spec, right: Spec) -> set[str]:
    return {name for name in DIGESTS if digests(left)[name] != digests(right)[name]}


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    names = st.lists(st.text('ab",é☃', max_size=3), min_size=1, max_size=4, unique=True).map(tuple)
    indices = st.integers(1, 5).map(lambda count: tuple(range(count)))
    kind: dict[str, Any] = draw(
        st.one_of(
            st.fixed_dictionaries({"labels": st.one_of(names, indices)}),
            st.fixed_dictionaries({"outputs": st.integers(1, 5)}),
        )
    )
    return Spec(
        dim=draw(st.integers(1, 1 << 16)),
        gamma=draw(st.floats(2.0**-100, 2.0**100)),
        intercept=draw(st.booleans()),
        grid=Grid(draw(st.sampled_from([1, 2])), draw(st.integers(0, 19))),
        label_grid=Grid(2, draw(st.integers(0, 40))),
        publication_bits=draw(st.integers(-200, 200)),
        backbone=draw(st.text('ab"é☃', max_size=3)),
        **kind,
    )


# -- a value ---------------------------------------------------------------------------------------


def test_defaults() -> None:
    spec = classification()
    assert (spec.gamma, spec.intercept, spec.publication_bits, spec.backbone, spec.publication) == (
        1.0,
        True,
        40,
        "",
        "immediately",
    )
    assert spec.grid == spec.label_grid == Grid(digits=2, fraction_bits=35)
    assert (spec.width, spec.columns, spec.is_classification) == (4, 2, True)
    other = regression(intercept=False)
    assert (other.width, other.columns, other.is_classification) == (3, 2, False)


@pytest.mark.parametrize(
    "name",
    [
        "dim",
        "labels",
        "outputs",
        "gamma",
        "intercept",
        "grid",
        "publication_bits",
        "backbone",
        "new",
    ],
)
def test_a_spec_is_immutable(name: str) -> None:
    spec = classification()
    before = spec.digest
    with pytest.raises(FrozenInstanceError):
        setattr(spec, name, 1)
    assert spec.digest == before


def test_a_list_of_labels_is_copied() -> None:
    labels = ["cat", "dog"]
    spec = classification(labels=labels)
    labels.append("cow")
    assert spec.labels == ("cat", "dog")


@given(specs())
def test_round_trips(spec: Spec) -> None:
    assert Spec.from_dict(spec.to_dict()) == spec
    assert Spec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    again = pickle.loads(pickle.dumps(spec))  # noqa: S301 - our own bytes
    assert again == spec
    assert hash(again) == hash(spec)
    assert digests(again) == digests(spec)
    assert again.digest == spec.digest


@given(specs(), specs())
def test_equal_specs_and_only_they_have_equal_digests(left: Spec, right: Spec) -> None:
    assert (left == right) == (left.digest == right.digest)


def test_numbers_of_numpy_mean_the_same() -> None:
    plain = Spec(dim=3, labels=(0, 1), gamma=0.5, intercept=True, publication_bits=30)
    other = Spec(
        dim=np.int32(3),  # type: ignore[arg-type]
        labels=np.arange(2),  # type: ignore[arg-type]
        gamma=np.float32(0.5),  # type: ignore[arg-type]
        intercept=np.bool_(True),  # type: ignore[arg-type]
        publication_bits=np.int64(30),  # type: ignore[arg-type]
    )
    assert other == plain
    assert other.digest == plain.digest
    assert json.dumps(other.to_dict()) == json.dumps(plain.to_dict())
    assert classification(labels=np.array(["cat", "dog"])) == classification()
    assert classification(gamma=1) == classification(gamma=1.0)


def test_gamma_is_the_rational_number_that_its_float_is() -> None:
    assert classification(gamma=0.1).exact_gamma == Fraction(0.1) != Fraction(1, 10)


# -- the four digests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dim": 4}, {"data_digest"}),
        ({"intercept": False}, {"data_digest"}),
        ({"grid": Grid(2, 34)}, {"data_digest"}),
        ({"grid": Grid(1, 15)}, {"data_digest"}),
        ({"label_grid": Grid(2, 34)}, {"data_digest"}),
        ({"backbone": "vit"}, {"data_digest"}),
        ({"labels": ("cat",)}, {"labels_digest"}),
        ({"labels": ("dog", "cat")}, {"labels_digest"}),
        ({"labels": ("cat", "dog", "cow")}, {"labels_digest"}),
        ({"labels": (0, 1)}, {"labels_digest"}),
        ({"labels": None, "outputs": 2}, {"labels_digest"}),
        ({"gamma": 1.0 + 2.0**-52}, {"head_digest"}),
        ({"publication_bits": 41}, {"head_digest"}),
        ({}, set()),
    ],
)
def test_each_field_changes_its_own_digest_and_the_whole(
    change: dict[str, Any], expected: set[str]
) -> None:
    spec, other = classification(), classification(**change)
    assert changed(spec, other) == expected
    assert (spec.digest != other.digest) == bool(expected)


def test_the_two_grids_are_told_apart() -> None:
    assert changed(classification(grid=Grid(2, 30)), classification(label_grid=Grid(2, 30))) == {
        "data_digest"
    }


def test_digests_of_different_kinds_never_coincide() -> None:
    spec = classification()
    assert (
        len({*digests(spec).values(), spec.digest, *spec.lineage}) == 7
    )  # the last of the lineage is the labels digest


def test_number_of_outputs_is_in_the_labels_digest() -> None:
    assert changed(regression(), regression(outputs=3)) == {"labels_digest"}


def test_labels_cannot_be_confused_by_how_they_are_joined() -> None:
    lists = [
        ("a", "b"),
        ("a,b",),
        ('a","b',),
        ("ab",),
        ("a", "b", ""),
        ("", "a", "b"),
        (0,),
        ("0",),
    ]
    assert len({classification(labels=labels).labels_digest for labels in lists}) == len(lists)


def test_golden_digests() -> None:
    """Statistics and heads carry these digests: a change of them is a change of format."""
    spec = Spec(dim=2, labels=("cat", "dog"), gamma=0.1, backbone="vit-b/16")
    assert digests(spec) == {
        "data_digest": "7928392b64154ae8fc27d0394c5489bfa02b336c2b9df1e58b3cf45393ee6033",
        "labels_digest": "24611a888b0a4f48ee7b88aa14b14f3f5959216b1ba325fb51cc6eaa49a6cec0",
        "head_digest": "98e29e09154313ba0c3815e48ee58799224ac982c2d373187f6ed2a111277aee",
        "policy_digest": "3f9126cf5959559c2242de84fb669e631bc9ae3982e36b55e9cc68bb8acb8bb0",
    }
    assert spec.digest == "ae408c96b19e83a0a9255ccc3ff7760edae3b07d8bfed8a9e61baf2134975a57"
    assert (
        Spec(dim=2, outputs=3).labels_digest
        == "193d74900f99bcbcdf6386e9784a0aef5f49ed487ab4433402988dcf8772095a"
    )


# -- growth ----------------------------------------------------------------------------------------


def test_with_gamma_and_with_publication_bits_change_the_head_only() -> None:
    spec = classification()
    assert spec.with_gamma(2.5) == classification(gamma=2.5)
    assert spec.with_publication_bits(50) == classification(publication_bits=50)
    assert (
        changed(spec, spec.with_gamma(2.5))
        == changed(spec, spec.with_publication_bits(50))
        == {"head_digest"}
    )
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(SpecError, match="gamma"):
            spec.with_gamma(bad)
    with pytest.raises(SpecError, match="publication_bits"):
        spec.with_publication_bits(201)


def test_with_labels_appends() -> None:
    spec = classification()
    grown = spec.with_labels("cow", "ant")
    assert grown == classification(labels=("cat", "dog", "cow", "ant"))
    assert changed(spec, grown) == {"labels_digest"}
    assert spec.with_labels() == spec
    assert Spec(dim=1, labels=(0, 1)).with_labels(2).labels == (0, 1, 2)
    with pytest.raises(SpecError, match=r"\['cat'\] appear more than once"):
        spec.with_labels("cat")
    with pytest.raises(SpecError, match="cannot grow by labels"):
        regression().with_labels("cow")


@given(specs(), st.integers(0, 4))
def test_the_lineage_is_a_chain(spec: Spec, length: int) -> None:
    assert spec.lineage[-1] == spec.labels_digest
    if spec.labels is not None and 1 <= length <= len(spec.labels):
        assert replace(spec, labels=spec.labels[:length]).labels_digest == spec.lineage[length]


def test_grows_from_means_appended_labels_on_the_same_data() -> None:
    spec = classification()
    grown = spec.with_labels("cow")
    assert grown.grows_from(spec)
    assert spec.grows_from(spec)
    assert not spec.grows_from(grown)
    assert grown.with_gamma(9.0).with_publication_bits(50).grows_from(spec), (
        "gamma and publication do not matter"
    )
    for other in (
        classification(labels=("dog", "cat", "cow")),
        classification(labels=("cow", "cat", "dog")),
        classification(labels=("cat",)).with_labels("cow", "dog"),
        classification(dim=4).with_labels("cow"),
        classification(intercept=False).with_labels("cow"),
        classification(backbone="other").with_labels("cow"),
        classification(grid=Grid(2, 34)).with_labels("cow"),
        regression(),
    ):
        assert not other.grows_from(spec), other
    assert not spec.grows_from(regression())
    assert regression(gamma=3.0).grows_from(regression())
    assert not regression(outputs=3).grows_from(regression())


def test_require_same_data_names_what_differs() -> None:
    spec = classification()
    spec.require_same_data(classification(gamma=7.0), "compare")
    with pytest.raises(
        SpecMismatchError, match="cannot compare: the specs differ: dim is 3 here and 4 there"
    ):
        spec.require_same_data(classification(dim=4), "compare")
    with pytest.raises(SpecMismatchError, match="labels is"):
        spec.require_same_data(spec.with_labels("cow"), "compare")
    assert spec.difference(classification()) == "the specs are equal"


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 0}, "dim=0 must lie between 1 and 65536"),
        ({"dim": -3}, "dim=-3 must lie"),
        ({"dim": 65537}, "dim=65537 must lie"),
        ({"dim": 3.0}, "dim=3.0 must be an integer"),
        ({"dim": True}, "dim=True must be an integer"),
        ({"dim": "3"}, "dim='3' must be an integer"),
        ({"dim": None}, "dim=None must be an integer"),
        ({"gamma": 0.0}, "gamma=0.0 must be positive and finite"),
        ({"gamma": -1.0}, "gamma=-1.0 must be positive and finite"),
        ({"gamma": float("nan")}, "gamma=nan must be positive and finite"),
        ({"gamma": float("inf")}, "gamma=inf must be positive and finite"),
        (
            {"gamma": 2.0**100 * (1 + 2.0**-52)},
            r"must lie between 2\^-100 and 2\^100; scale the features",
        ),
        ({"gamma": 2.0**-101}, r"must lie between 2\^-100 and 2\^100"),
        ({"gamma": 10**400}, "gamma"),
        ({"gamma": "1"}, "gamma='1' must be a number"),
        ({"gamma": True}, "gamma=True must be a number"),
        ({"gamma": None}, "gamma=None must be a number"),
        ({"gamma": 1j}, "gamma=1j must be a number"),
        ({"labels": ()}, "needs at least one label"),
        ({"labels": "cat"}, "labels='cat' must be a sequence of label names"),
        ({"labels": 3}, "labels=3 must be a sequence"),
        ({"labels": ("cat", "cat", "dog")}, r"\['cat'\] appear more than once"),
        ({"labels": ("cat", 1.5)}, "label 1.5 must be a string"),
        ({"labels": ("cat", None)}, "label None must be a string"),
        ({"labels": (b"cat",)}, "label b'cat' must be a string"),
        ({"labels": (False, True)}, "label False must be a string"),
        ({"labels": (1, 2)}, "integer labels must be 0, 1, 2, ... in order"),
        ({"labels": (0, 0)}, "integer labels must be 0, 1, 2"),
        ({"labels": ("cat", 1)}, "Name the classes by strings instead"),
        ({"labels": tuple(range(65537))}, "65537 labels are more than the 65536"),
        ({"labels": None}, "give either labels"),
        ({"outputs": 2}, "give either labels"),
        ({"labels": None, "outputs": 0}, "outputs=0 must lie between"),
        ({"labels": None, "outputs": 2.0}, "outputs=2.0 must be an integer"),
        ({"labels": None, "outputs": True}, "outputs=True must be an integer"),
        ({"intercept": 1}, "intercept=1 must be True or False"),
        ({"intercept": None}, "intercept=None must be True or False"),
        ({"grid": (2, 35)}, r"grid=\(2, 35\) must be an expunge.Grid"),
        ({"label_grid": None}, "label_grid=None must be an expunge.Grid"),
        (
            {"grid": Grid(2, 41)},
            (
                "cannot hold the constant feature 1 of the intercept: fraction_bits must lie "
                "between 0 and 40"
            ),
        ),
        ({"grid": Grid(2, -1)}, "choose such a grid or intercept=False"),
        (
            {"label_grid": Grid(1, 20)},
            "cannot hold a hard label, which is 1: fraction_bits must lie between 0 and 19",
        ),
        ({"publication_bits": 201}, "publication_bits=201 must lie between -200 and 200"),
        ({"publication_bits": 40.0}, "publication_bits=40.0 must be an integer"),
        ({"backbone": None}, "backbone=None must be a fingerprint"),
        ({"backbone": b"vit"}, "backbone=b'vit' must be a fingerprint"),
        ({"publication": "never"}, "publication='never' is unknown"),
        ({"fewest_samples": 2}, "hides nothing where rows messages show single samples"),
        ({"fewest_samples": -1}, "fewest_samples=-1 must lie between"),
        ({"fewest_samples": True}, "fewest_samples=True must be an integer"),
    ],
)
def test_specs_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        classification(**change)
    assert isinstance(caught.value, ExpungeError)
    assert isinstance(caught.value, ValueError)


def test_limits_themselves_are_allowed() -> None:
    assert classification(gamma=2.0**100).gamma == 2.0**100
    assert classification(gamma=2.0**-100).gamma == 2.0**-100
    assert classification(grid=Grid(2, 40)).width == 4
    assert classification(grid=Grid(2, 0)).width == 4
    assert classification(dim=65536).width == 65537
    assert classification(publication_bits=-200).publication_bits == -200
    assert classification(grid=Grid(2, 60), intercept=False).width == 3
    assert regression(label_grid=Grid(2, 60)).columns == 2, "real targets need not hold the value 1"


def test_an_unordered_collection_of_labels_is_refused() -> None:
    """The order of a set of strings differs from process to process, and labels are ordered."""
    with pytest.raises(SpecError, match="labels"):
        classification(labels={"cat", "dog", "cow"})


# -- the JSON form ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(classification().to_dict()))
def test_from_dict_refuses_missing_keys_by_name(key: str) -> None:
    content = classification().to_dict()
    del content[key]
    with pytest.raises(
        SpecError,
        match="not a spec of version 1"
        if key == "version"
        else rf"missing: \['{key}'\], unknown: \[\]",
    ):
        Spec.from_dict(content)


@pytest.mark.parametrize(
    ("width", "fewest"), [(1, 2), (4, 8), (511, 1022), (512, 1024), (513, 1024), (65_537, 1024)]
)
def test_the_fewest_samples_to_choose_grow_with_the_width_up_to_where_lattices_end(
    width: int, fewest: int
) -> None:
    assert recommended_fewest_samples(width) == fewest


@pytest.mark.parametrize(
    ("messages", "sums"),
    [(("gram",), True), (("group", "gram"), True), (("masked",), True), (("gram", "rows"), False)],
)
def test_whether_the_server_sees_only_sums(messages: tuple[str, ...], sums: bool) -> None:
    assert classification(messages=messages).shows_only_sums == sums
    assert not classification(messages=("factor",)).shows_only_sums


def test_the_fewest_samples_are_written_if_there_is_a_rule() -> None:
    """Specs of before the rule keep their bytes and digests."""
    gram = classification(messages=("gram",))
    spec = classification(messages=("gram",), fewest_samples=8)
    assert spec.to_dict() == gram.to_dict() | {"fewest_samples": 8}
    assert changed(gram, spec) == {"policy_digest"}
    assert Spec.from_dict(spec.to_dict()) == spec


def test_from_dict_refuses_unknown_keys_by_name() -> None:
    with pytest.raises(SpecError, match=r"missing: \[\], unknown: \['colour'\]"):
        Spec.from_dict(classification().to_dict() | {"colour": "red"})


@pytest.mark.parametrize(
    "content", [None, [], "spec", {}, {"version": 2}, classification().to_dict() | {"version": 2}]
)
def test_from_dict_refuses_what_is_no_spec(content: Any) -> None:
    with pytest.raises(SpecError, match="not a spec of version 1"):
        Spec.from_dict(content)


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 1.0},
        {"gamma": "one"},
        {"gamma": None},
        {"gamma": "nan"},
        {"gamma": "0x1p2000"},
        {"gamma": "-0x1p0"},
        {"grid": [3, 35]},
        {"grid": [2]},
        {"grid": [2, 35, 1]},
        {"grid": None},
        {"grid": [2, 99]},
        {"label_grid": "ab"},
        {"label_grid": [2, 1.5]},
        {"labels": 5},
        {"labels": "ab"},
        {"labels": []},
        {"labels": [["cat"]]},
        {"labels": {"cat": 1}},
        {"outputs": 2},
        {"dim": "3"},
        {"intercept": "yes"},
        {"publication_bits": None},
        {"backbone": 1},
        {"publication": "never"},
    ],
)
def test_from_dict_refuses_bad_values(change: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Spec.from_dict(classification().to_dict() | change)
