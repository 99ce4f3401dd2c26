"""Spec: what every party of a federation must agree on, with its digests.

`Aggregation` is the part of it that has the rules of exact secure aggregation. Degree and threshold
of a round follow from these rules and the number of its clients (expunge.secagg.plan); the server
does not choose them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from expunge.errors import SpecError, SpecMismatchError
from expunge.exact.grid import Grid
from expunge.kinds import MESSAGES, MessageKind

_YEAR = 366 * 24 * 3600
_RANGES = {
    "fewest": (2, 1 << 20),
    "dropouts": (0, 99),
    "colluding": (0, 99),
    "security_bits": (1, 128),
    "completion_bits": (1, 128),
    "every": (0, _YEAR),
    "window": (0, _YEAR),
    "set_aside_after": (1, _YEAR),
}
_SHORTEST_WINDOW = 10  # seconds within which clients with timers can meet
_ARBITER_DIGITS = 128  # hexadecimal: two keys of 32 bytes


@dataclass(frozen=True)
class Aggregation:
    """The rules by which clients' sums are aggregated under masks.

    Every party derives degree and threshold of a round from these rules and the number of its
    clients; the server cannot choose them.

    Parameters
    ----------
    fewest : int, default 3
        A sum over fewer clients is never unmasked; 2 to 2^20.
    dropouts : int, default 30
        Per cent of a round's clients that may drop out of it; 0 to 99.
    colluding : int, default 10
        Per cent of a round's clients that may collude with the server; 0 to 99.
    security_bits : int, default 40
        With that many clients colluding and dropping out, more than the sum is learnt with
        probability at most 2^-security_bits; 1 to 128.
    completion_bits : int, default 20
        With that many clients dropping out, the round is aborted with probability at most
        2^-completion_bits; 1 to 128.
    every : int, default 0
        Seconds between the beginnings of rounds of changes, which are at multiples of `every` since
        1970-01-01 UTC: whoever syncs in the window joins, with zeros if it has nothing to change. 0
        for rounds that begin whenever a client has something to change.
    window : int, default 0
        Seconds from the beginning of a round in which clients join it; 1 to `every`, and 0 without
        a schedule.
    arbiter : str, default ""
        The public keys, 128 hexadecimal digits, of who decides whose statistics are false when a
        sum is; "" if there is nobody. Never the operator of the server.
    set_aside_after : int, default 604800
        Seconds until a client is set aside that others wait for, because a sum was false and it
        neither takes part in the next one nor opens its part to the arbiter.

    Raises
    ------
    SpecError
        If a value is not an integer or outside its range, if `dropouts` and `colluding` are
        together 100 or more, if the window is not within `every`, or if `arbiter` is no pair of
        keys.

    See Also
    --------
    Spec : has these rules as `aggregation`, with messages=("masked",).

    Examples
    --------
    >>> import expunge
    >>> rules = expunge.Aggregation(fewest=5, colluding=20)
    >>> spec = expunge.Spec(dim=8, outputs=1, messages=("masked",), aggregation=rules)
    >>> spec.is_masked
    True
    >>> expunge.Aggregation.from_dict(rules.to_dict()) == rules
    True
    """

    fewest: int = 3
    dropouts: int = 30
    colluding: int = 10
    security_bits: int = 40
    completion_bits: int = 20
    every: int = 0
    window: int = 0
    arbiter: str = ""
    set_aside_after: int = 7 * 24 * 3600

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise SpecError(
                    f"{name}={value!r:.80} of the aggregation must be an integer between {least} "
                    f"and {most}"
                )
            if not least <= int(value) <= most:
                raise SpecError(
                    f"{name}={int(value)} of the aggregation must lie between {least} and {most}"
                )
            object.__setattr__(self, name, int(value))
        if self.dropouts + self.colluding >= 100:
            raise SpecError(
                f"dropouts={self.dropouts} and colluding={self.colluding} of the aggregation are "
                "together 100 per cent or more: "
                "no honest client would be left to protect. Lower one of them"
            )
        if not bool(self.every) <= self.window <= self.every:
            raise SpecError(
                f"window={self.window} of the aggregation must lie between 1 and "
                f"every={self.every} seconds, and both are 0 without a schedule"
            )
        if self.arbiter != "" and not _is_hexadecimal(self.arbiter, _ARBITER_DIGITS):
            raise SpecError(
                f"arbiter={self.arbiter!r:.40} of the aggregation must be the public keys that "
                f"`expunge arbiter create` wrote: {_ARBITER_DIGITS} hexadecimal digits"
            )

    def to_dict(self) -> dict[str, int | str]:
        """The rules as a JSON-ready dictionary; `from_dict` is the inverse.

        Returns
        -------
        dict of str to int or str
            One entry for each of the first five parameters, and for others that are not the
            default.
        """
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name in _ALWAYS or getattr(self, field.name) != field.default
        }

    def require_feasible(self) -> None:
        """Refuse rules that rounds cannot keep. A federation is not founded with such rules.

        More than half of a round's clients, and half of those that collude, must agree on who is in
        the sum, so that a server which tells different clients different things finds no answer.

        On a schedule, a window must be long enough for clients to meet in it.

        Raises
        ------
        SpecError
            If twice `dropouts` and `colluding` are together 100 or more, or if there is a schedule
            and `window` is below 10.

        Examples
        --------
        >>> import expunge
        >>> expunge.Aggregation(dropouts=30, colluding=10).require_feasible()
        >>> expunge.Aggregation(dropouts=45, colluding=10).require_feasible()
        Traceback (most recent call last):
        ...
        expunge.errors.SpecError: dropouts=45 and colluding=10 of the aggregation cannot both be ...
        """
        if 2 * self.dropouts + self.colluding >= 100:
            raise SpecError(
                f"dropouts={self.dropouts} and colluding={self.colluding} of the aggregation "
                "cannot both be allowed: too few clients would be left to agree on who is in a "
                "sum. Lower one, so that twice the drop-outs and the colluding clients together "
                "are below 100 per cent"
            )
        if self.every and self.window < _SHORTEST_WINDOW:
            raise SpecError(
                f"window={self.window} of the aggregation is too short for clients to meet in: "
                f"give it {_SHORTEST_WINDOW} seconds or more, and better minutes"
            )

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Aggregation:
        """The rules that `to_dict` wrote.

        Parameters
        ----------
        content : dict of str to int or str
            The keys that `to_dict` writes.

        Returns
        -------
        Aggregation
            Equal to the one that was written.

        Raises
        ------
        SpecError
            If keys are missing or unknown, which are named, or a value is out of range.
        """
        known = {field.name for field in fields(cls)}
        keys = set(content) if isinstance(content, dict) else set()
        if not _ALWAYS <= keys <= known:
            raise SpecError(
                f"an aggregation must be an object with the keys {sorted(_ALWAYS)} and perhaps "
                f"{sorted(known - _ALWAYS)}; missing: {sorted(_ALWAYS - keys)}, unknown: "
                f"{sorted(map(str, keys - known))}"
            )
        return cls(**content)


_ALWAYS = {"fewest", "dropouts", "colluding", "security_bits", "completion_bits"}  # when written


Label = str | int

MOST_GAMMA = 2.0**100
_MOST_DIM = 1 << 16
_MOST_PUBLICATION_BITS = 200
_MOST_FEWEST_SAMPLES = 1 << 20
_SHOWING = {"factor", "rows"}  # messages that show single samples
_LATTICE_SAMPLES = 1024  # from whose sum lattice reduction recovers none
_VERSION = 1
AMENDABLE = ("gamma", "labels", "messages", "publication_bits")  # labels are appended


def recommended_fewest_samples(width: int) -> int:
    """The `fewest_samples` to choose for features of this width: min(1024, 2 width).

    The exact Gram of r samples is that of the lattice Z^r, turned: reduction with blocks of r/2
    recovers the samples, in some 2^(0.146 r) steps, which are too many from r = 1024 on. And with
    twice as many samples as the features are wide, the Gram has fewer bits than they. Neither helps
    a column that few of the samples have, nor a class of few samples.
    """
    return min(_LATTICE_SAMPLES, 2 * width)


def _digest(kind: str, content: object) -> str:
    """SHA-256 over a canonical JSON form, under a name of its own, so that no two kinds of digest
    can be confused.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"expunge/{kind}/{_VERSION}\n{text}".encode()).hexdigest()


def _integer(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SpecError(f"{name}={value!r} must be an integer")
    if not least <= int(value) <= most:
        raise SpecError(f"{name}={int(value)} must lie between {least} and {most}")
    return int(value)


def _is_hexadecimal(value: object, digits: int) -> bool:
    return (
        isinstance(value, str) and len(value) == digits and not set(value) - set("0123456789abcdef")
    )


def _is_boolean(value: object) -> bool:
    """Whether this is True or False, of Python or of numpy."""
    if isinstance(value, bool):
        return True
    import numpy as np  # noqa: PLC0415 - digests of specs need no arithmetic, nor does most else

    return isinstance(value, np.bool_)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What every party of a federation must agree on: an immutable value with a digest.

    Exactly one of `labels` (classification) and `outputs` (regression) is given.

    Parameters
    ----------
    dim : int
        Length of a feature, without the intercept's constant; 1 to 65,536.
    labels : sequence of str, or of the integers 0, 1, 2, ..., optional
        The classes, in the order of the weights' columns.
    outputs : int, optional
        The number of real targets of a regression; 1 to 65,536.
    gamma : float, default 1.0
        The ridge penalty, which is positive: the head is (S + gamma I)^-1 G. 2^-100 to 2^100.
    intercept : bool, default True
        Whether a constant feature 1 is appended. The last row of the weights is then the intercept;
        it is penalised like the rest.
    grid : Grid, default Grid(digits=2, fraction_bits=35)
        The fixed-point grid of features.
    label_grid : Grid, default Grid(digits=2, fraction_bits=35)
        The fixed-point grid of labels or outputs.
    publication_bits : int, default 40
        Published weights are multiples of 2^-publication_bits; -200 to 200.
    backbone : str, default ""
        The fingerprint of the backbone that computes the features; "" pins none.
    publication : {"immediately"}, default "immediately"
        When heads are published. There is one policy so far.
    messages : sequence of str, default ("gram", "rows")
        Kinds of messages that clients may send: "gram" (statistics), "rows" (integers of single
        samples), "group" (sums of an aggregator's group), "factor" (R factors of thin QR, for a
        ledger in float64), or "masked" alone. Kept in sorted order.
    aggregation : Aggregation, optional
        The rules of secure aggregation: with messages=("masked",) only, where the default is
        Aggregation().
    fewest_samples : int, default 0
        A client's change waits until it is of so many samples, added and deleted ones counted, or a
        deletion in it can wait no longer. 0 to 2^20; not with "rows" or "factor" messages, which
        show single samples.

    Raises
    ------
    SpecError
        If a value cannot be, or values contradict each other. The message names the parameter.

    See Also
    --------
    Grid : the range and step of what features and labels become.
    expunge.backbones.require_fingerprint : compares a backbone with a spec.

    Notes
    -----
    `digest` covers four digests, each of what may change separately:

    - `data_digest`: dim, intercept, both grids and the backbone's fingerprint;
    - `labels_digest`: the ordered labels, or the number of outputs;
    - `head_digest`: gamma and publication_bits;
    - `policy_digest`: publication, messages, aggregation and fewest_samples.

    Statistics are bound to the first two only. So gamma and policy change without touching data,
    and labels may be appended.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=768, labels=("cat", "dog"), gamma=0.1)
    >>> spec.width, spec.columns
    (769, 2)
    >>> expunge.Spec.from_dict(spec.to_dict()) == spec
    True
    >>> expunge.Spec(dim=768)
    Traceback (most recent call last):
        ...
    expunge.errors.SpecError: give either labels=(...) for classification or outputs=n ...
    """

    dim: int
    labels: tuple[Label, ...] | None = None
    outputs: int | None = None
    gamma: float = 1.0
    intercept: bool = True
    grid: Grid = Grid()  # noqa: RUF009 - a frozen value
    label_grid: Grid = Grid()  # noqa: RUF009 - the same
    publication_bits: int = 40
    backbone: str = ""
    publication: str = "immediately"
    messages: tuple[MessageKind, ...] = ("gram", "rows")
    aggregation: Aggregation | None = None  # with messages=("masked",) only, and then never None
    fewest_samples: int = 0

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "dim", _integer("dim", self.dim, 1, _MOST_DIM))
        set_field(
            self,
            "publication_bits",
            _integer(
                "publication_bits",
                self.publication_bits,
                -_MOST_PUBLICATION_BITS,
                _MOST_PUBLICATION_BITS,
            ),
        )
        if not _is_boolean(self.intercept):
            raise SpecError(f"intercept={self.intercept!r} must be True or False")
        set_field(self, "intercept", bool(self.intercept))
        for name in ("grid", "label_grid"):
            if not isinstance(getattr(self, name), Grid):
                raise SpecError(
                    f"{name}={getattr(self, name)!r} must be an expunge.Grid, such as "
                    "Grid(digits=2, fraction_bits=35)"
                )
        if not isinstance(self.backbone, str):
            raise SpecError(f"backbone={self.backbone!r} must be a fingerprint (a string)")
        if self.publication != "immediately":
            raise SpecError(
                f"publication={self.publication!r} is unknown; the one policy so far is "
                '"immediately"'
            )
        set_field(self, "messages", message_kinds(self.messages))
        set_field(self, "aggregation", _checked_aggregation(self.messages, self.aggregation))
        set_field(
            self,
            "fewest_samples",
            _integer("fewest_samples", self.fewest_samples, 0, _MOST_FEWEST_SAMPLES),
        )
        shown = " and ".join(kind for kind in self.messages if kind in _SHOWING)
        if self.fewest_samples and not self.shows_only_sums:
            raise SpecError(
                f"fewest_samples={self.fewest_samples} hides nothing where {shown} messages show "
                "single samples: leave them out of messages, or choose fewest_samples=0"
            )
        set_field(self, "gamma", _checked_gamma(self.gamma))
        self._check_targets()
        if self.intercept and not self.grid.holds_one:
            raise SpecError(
                f"{self.grid!r} cannot hold the constant feature 1 of the intercept: "
                "fraction_bits must lie between 0 and "
                f"{self.grid.bits - 1}; choose such a grid or intercept=False"
            )

    def _check_targets(self) -> None:
        if (self.labels is None) == (self.outputs is None):
            raise SpecError(
                "give either labels=(...) for classification or outputs=n for regression"
            )
        if self.outputs is not None:
            object.__setattr__(self, "outputs", _integer("outputs", self.outputs, 1, _MOST_DIM))
            return
        object.__setattr__(self, "labels", _checked_labels(self.labels))
        if not self.label_grid.holds_one:
            raise SpecError(
                f"label_grid={self.label_grid!r} cannot hold a hard label, which is 1: "
                f"fraction_bits must lie between 0 and {self.label_grid.bits - 1}"
            )

    @property
    def width(self) -> int:
        """Rows of the weights: `dim`, and one more for the intercept."""
        return self.dim + self.intercept

    @property
    def columns(self) -> int:
        """Columns of the weights: the number of labels or of outputs."""
        return len(self.labels) if self.labels is not None else int(self.outputs or 0)

    @property
    def is_classification(self) -> bool:
        """Whether the spec has labels rather than outputs."""
        return self.labels is not None

    @property
    def is_exact(self) -> bool:
        """Whether the ledger is made of integers.

        A federation that allows factor messages computes in float64 instead.
        """
        return "factor" not in self.messages

    @property
    def shows_only_sums(self) -> bool:
        """Whether no kind of messages shows the server single samples: only sums over several."""
        return not _SHOWING & set(self.messages)

    @property
    def is_masked(self) -> bool:
        """Whether clients' changes travel by secure aggregation only: the server sees sums."""
        return self.aggregation is not None

    @property
    def is_scheduled(self) -> bool:
        """Whether clients' changes travel by rounds on a schedule, which all clients join."""
        return self.aggregation is not None and self.aggregation.every > 0

    @property
    def exact_gamma(self) -> Fraction:
        """gamma as the rational number that its float64 is."""
        return Fraction(self.gamma)

    @cached_property
    def data_digest(self) -> str:
        """SHA-256, in hexadecimal, of what makes two clients' integers comparable."""
        return _digest(
            "data",
            {
                "backbone": self.backbone,
                "dim": self.dim,
                "grid": [self.grid.digits, self.grid.fraction_bits],
                "intercept": self.intercept,
                "label_grid": [self.label_grid.digits, self.label_grid.fraction_bits],
            },
        )

    @cached_property
    def lineage(self) -> tuple[str, ...]:
        """The labels digests after 0, 1, 2, ... labels, in hexadecimal.

        They are a hash chain, so that growth by appending can be recognised. A regression spec has
        one entry.
        """
        if self.labels is None:
            return (_digest("outputs", self.outputs),)
        chain = [_digest("labels", [])]
        for label in self.labels:
            chain.append(_digest("labels", [chain[-1], label]))
        return tuple(chain)

    @cached_property
    def labels_digest(self) -> str:
        """SHA-256, in hexadecimal, of the ordered labels, or of the number of outputs."""
        return self.lineage[-1]

    @cached_property
    def head_digest(self) -> str:
        """SHA-256, in hexadecimal, of gamma and publication_bits, which make weights of sums."""
        return _digest(
            "head", {"gamma": self.gamma.hex(), "publication_bits": self.publication_bits}
        )

    @cached_property
    def policy_digest(self) -> str:
        """SHA-256, in hexadecimal, of publication, messages, the rules of secure aggregation and
        the fewest samples of a change.
        """
        content: dict[str, Any] = {
            "messages": list(self.messages),
            "publication": self.publication,
            **self._fewest_samples_entry(),
        }
        if self.aggregation is not None:
            content["aggregation"] = self.aggregation.to_dict()
        return _digest("policy", content)

    def _fewest_samples_entry(self) -> dict[str, int]:
        """Nothing by default: specs and digests of before this parameter stay what they were."""
        return {"fewest_samples": self.fewest_samples} if self.fewest_samples else {}

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the whole spec: it covers the other four digests."""
        return _digest(
            "spec", [self.data_digest, self.labels_digest, self.head_digest, self.policy_digest]
        )

    def with_gamma(self, gamma: float) -> Spec:
        """The same spec with another gamma; statistics stay valid.

        Parameters
        ----------
        gamma : float
            Positive; 2^-100 to 2^100.

        Returns
        -------
        Spec
            With another `head_digest`, and the same data and labels digests.

        Raises
        ------
        SpecError
            If gamma is out of range.
        """
        return replace(self, gamma=gamma)

    def with_publication_bits(self, bits: int) -> Spec:
        """The same spec with another publication grid; statistics stay valid.

        Parameters
        ----------
        bits : int
            The new `publication_bits`; -200 to 200.

        Returns
        -------
        Spec
            With another `head_digest`, and the same data and labels digests.

        Raises
        ------
        SpecError
            If `bits` is out of range.
        """
        return replace(self, publication_bits=bits)

    def with_labels(self, *more: Label) -> Spec:
        """The same spec with labels appended; statistics stay valid, and the new classes are empty.

        Parameters
        ----------
        *more : str or int
            The labels to append, of the kind that the spec has.

        Returns
        -------
        Spec
            It `grows_from` this one.

        Raises
        ------
        SpecError
            If this is a regression spec, or a label is there already.
        """
        if self.labels is None:
            raise SpecError("a regression spec has outputs, not labels: it cannot grow by labels")
        return replace(self, labels=(*self.labels, *more))

    def grows_from(self, other: Spec) -> bool:
        """Whether statistics of `other` are valid under this spec, perhaps with empty classes.

        Parameters
        ----------
        other : Spec
            The spec that statistics were made under.

        Returns
        -------
        bool
            True if the data digests agree and the labels of `other` are the first of this spec's.
        """
        if (
            self.data_digest != other.data_digest
            or self.is_classification != other.is_classification
        ):
            return False
        if not self.is_classification:
            return self.labels_digest == other.labels_digest
        return (
            len(other.lineage) <= len(self.lineage)
            and self.lineage[len(other.lineage) - 1] == other.labels_digest
        )

    def require_amends(self, other: Spec) -> None:
        """Refuse to be taken for an amended `other`, unless only what may be amended differs:
        gamma, publication bits, messages, and labels that were appended.

        Parameters
        ----------
        other : Spec
            The spec that was amended.

        Raises
        ------
        SpecMismatchError
            Something else differs; or secure aggregation would begin or end, or exact arithmetic
            would.
        """
        if not self.grows_from(other):
            raise SpecMismatchError(
                f"labels may be appended, never dropped or reordered: {other.difference(self)}"
            )
        if self.is_exact != other.is_exact:
            raise SpecMismatchError(
                "a federation cannot change between exact and float64 arithmetic: found another"
            )
        if self.is_masked != other.is_masked:
            raise SpecMismatchError(
                "a federation cannot begin or end secure aggregation: found another"
            )
        before, after = other.to_dict(), self.to_dict()
        fixed = sorted({*before, *after} - set(AMENDABLE))
        changed = [name for name in fixed if before.get(name) != after.get(name)]
        if changed:
            raise SpecMismatchError(
                f"an amendment can change {', '.join(AMENDABLE)}, not {', '.join(changed)}"
            )

    def require_same_data(self, other: Spec, doing: str) -> None:
        """Raise unless statistics of the two specs can be added.

        Parameters
        ----------
        other : Spec
            The spec to compare with.
        doing : str
            What is attempted, for the message "cannot ...".

        Raises
        ------
        SpecMismatchError
            If the data digests or the labels digests differ. The message names the fields.
        """
        if self.data_digest == other.data_digest and self.labels_digest == other.labels_digest:
            return
        raise SpecMismatchError(f"cannot {doing}: {self.difference(other)}")

    def difference(self, other: Spec) -> str:
        """The fields in which two specs differ, in words.

        Parameters
        ----------
        other : Spec
            The spec to compare with; "there" in the sentence.

        Returns
        -------
        str
            One clause for each field, or "the specs are equal".
        """
        names = [
            name
            for name in self.__dataclass_fields__
            if getattr(self, name) != getattr(other, name)
        ]
        parts = [
            f"{name} is {getattr(self, name)!r:.200} here and {getattr(other, name)!r:.200} there"
            for name in names
        ]
        return "the specs differ: " + "; ".join(parts) if parts else "the specs are equal"

    def to_dict(self) -> dict[str, Any]:
        """The spec as a JSON-ready dictionary; `from_dict` is the inverse.

        Returns
        -------
        dict
            One entry for each parameter, and the version; `fewest_samples` only if it is not 0.
            gamma is a hexadecimal float, which is exact.
        """
        return {
            "version": _VERSION,
            "dim": self.dim,
            "labels": None if self.labels is None else list(self.labels),
            "outputs": self.outputs,
            "gamma": self.gamma.hex(),
            "intercept": self.intercept,
            "grid": [self.grid.digits, self.grid.fraction_bits],
            "label_grid": [self.label_grid.digits, self.label_grid.fraction_bits],
            "publication_bits": self.publication_bits,
            "backbone": self.backbone,
            "publication": self.publication,
            "messages": list(self.messages),
            "aggregation": None if self.aggregation is None else self.aggregation.to_dict(),
            **self._fewest_samples_entry(),
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Spec:
        """The spec that `to_dict` wrote.

        Parameters
        ----------
        content : dict
            The keys that `to_dict` writes.

        Returns
        -------
        Spec
            Equal to the one that was written.

        Raises
        ------
        SpecError
            If the version is another, keys are missing or unknown, or a value cannot be.
        """
        if not isinstance(content, dict) or content.get("version") != _VERSION:
            raise SpecError(f"not a spec of version {_VERSION}: {content!r:.80}")
        fields = {key: value for key, value in content.items() if key != "version"}
        expected = set(cls.__dataclass_fields__) - {"fewest_samples"}
        if set(fields) - {"fewest_samples"} != expected:
            raise SpecError(
                f"a spec must have exactly the keys {sorted(expected)}; missing: "
                f"{sorted(expected - set(fields))}, unknown: "
                f"{sorted(set(fields) - expected - {'fewest_samples'})}"
            )
        try:
            fields["gamma"] = float.fromhex(fields["gamma"])
            for name in ("grid", "label_grid"):
                digits, fraction_bits = fields[name]
                fields[name] = Grid(digits, fraction_bits)
        except (TypeError, ValueError, OverflowError) as problem:
            raise SpecError(
                "a spec's gamma must be a hexadecimal float and its grids pairs of integers: "
                f"{problem}"
            ) from problem
        if fields["aggregation"] is not None:
            fields["aggregation"] = Aggregation.from_dict(fields["aggregation"])
        for name in ("labels", "messages"):
            if fields[name] is not None or name == "messages":
                if not isinstance(fields[name], list):
                    raise SpecError(
                        f"a spec's {name} must be a list{' or null' * (name == 'labels')}, got "
                        f"{fields[name]!r:.80}"
                    )
                fields[name] = tuple(fields[name])
        return cls(**fields)


def message_kinds(messages: object) -> tuple[MessageKind, ...]:
    """Kinds of messages, sorted.

    Parameters
    ----------
    messages : sequence of str
        As for `Spec`.

    Returns
    -------
    tuple of str
        Each kind once.

    Raises
    ------
    SpecError
        If a kind is unknown or given twice, there is none, or "masked" is not alone.
    """
    if isinstance(messages, str) or not isinstance(messages, Iterable):
        raise SpecError(
            f"messages={messages!r} must be a sequence of some of {', '.join(MESSAGES)}"
        )
    kinds = tuple(messages)
    unknown = [kind for kind in kinds if kind not in MESSAGES]
    if unknown or not kinds or len(set(kinds)) < len(kinds):
        raise SpecError(
            f"messages={kinds!r:.80} must be some of {', '.join(MESSAGES)}, each at most once"
        )
    if "masked" in kinds and len(kinds) > 1:
        raise SpecError(
            f"messages={kinds!r:.80}: masked messages stand alone, because a client that sent "
            "others too would show its share of "
            "every sum. Choose messages=('masked',) or messages without it"
        )
    return tuple(sorted(kinds))


def _checked_aggregation(messages: tuple[MessageKind, ...], rules: object) -> Aggregation | None:
    if rules is not None and not isinstance(rules, Aggregation):
        raise SpecError(
            f"aggregation={rules!r:.80} must be an expunge.Aggregation, such as "
            "Aggregation(fewest=3)"
        )
    if "masked" in messages:
        return rules or Aggregation()
    if rules is not None:
        raise SpecError(
            f"the rules of secure aggregation need messages=('masked',), got messages={messages!r}"
        )
    return None


def _checked_gamma(gamma: object) -> float:
    if isinstance(gamma, (bool, Fraction)) or not isinstance(gamma, Real):
        raise SpecError(f"gamma={gamma!r} must be a number")
    try:
        value = float(gamma)
    except OverflowError:
        value = math.inf
    if not (math.isfinite(value) and value > 0.0):
        raise SpecError(
            f"gamma={value!r} must be positive and finite: the exact head exists for gamma > 0 only"
        )
    if not 1.0 / MOST_GAMMA <= value <= MOST_GAMMA:
        raise SpecError(
            f"gamma={value!r} must lie between 2^-100 and 2^100; scale the features instead"
        )
    return value


def _checked_labels(labels: object) -> tuple[Label, ...]:
    if isinstance(labels, (str, bytes, set, frozenset, dict)) or not isinstance(labels, Iterable):
        raise SpecError(
            f"labels={labels!r} must be a sequence of label names, such as ('cat', 'dog')"
        )
    names: list[Label] = []
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, (str, Integral)):
            raise SpecError(
                f"label {label!r} must be a string (or the integers 0, 1, 2, ... for classes "
                "without names)"
            )
        if isinstance(label, str) and "\0" in label:
            raise SpecError(
                f"label {label!r} has a NUL character, which arrays of strings drop; name it "
                "otherwise"
            )
        names.append(str(label) if isinstance(label, str) else int(label))
    if not names:
        raise SpecError("labels=() is empty: a head needs at least one label")
    if len(names) > _MOST_DIM:
        raise SpecError(f"{len(names)} labels are more than the {_MOST_DIM} that a spec can have")
    if any(isinstance(name, int) for name in names) and names != list(range(len(names))):
        raise SpecError(
            "integer labels must be 0, 1, 2, ... in order, because an integer label is a class "
            f"index; got {names!r:.80}. Name the classes by strings instead"
        )
    doubled = (
        sorted({str(name) for name in names if names.count(name) > 1})
        if len(set(names)) < len(names)
        else []
    )
    if doubled:
        raise SpecError(f"labels must differ from one another; {doubled} appear more than once")
    return tuple(names)
