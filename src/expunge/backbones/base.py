"""Backbone: samples to features, frozen, known by its fingerprint.

Laws, for every backbone `b`:
- `b.features(samples)` has shape (len(samples), b.dim), dtype `b.dtype`, and no NaN or infinity;
  else BackboneError.
- Evaluation mode: the same call in the same environment (machine, library versions) gives the same
  bytes.
- If `b.independent`, a feature depends on its own sample alone: any batch size, order and
  companions give the same bytes. This is the default, and it is reached by sending each sample
  through the network alone: in batches, matrix products are blocked differently and texts are
  padded to the longest, which was seen to change the last bits (about 1e-6) of many features.
- With `together=True` the samples of a batch go through at once; then `b.independent` is False and
  only the first two laws hold.

`check_backbone` puts any backbone to the test, ours or a user's own. Optional libraries are
imported only when a backbone needs them (`needed`).

The one-line description of a backbone: `KIND:LOCATION?option=value&option=value`.

Law: `parsed(written(kind, location, options, {})) == (kind, location, options)`. In the location,
`%` and `?` are written as `%25` and `%3F`; in options, also `&`, `=` and `+` are written with `%`.

Fingerprints of backbones: what a spec pins.

Law: equal fingerprints mean equal bytes of weights and equal settings of preprocessing and output.
The other direction is not promised: the same network saved to a file of another layout has another
fingerprint.

Library versions, processor, number of threads and size of batches are not covered, though each may
change the last bits of a feature. They change how the function is rounded, not which function it
is: two clients on different machines compute comparable features, and a fingerprint that no second
machine can have would pin nothing but that machine. `Backbone.describe` records them beside the
fingerprint, and a client that recomputes features compares bits with the sample's commitment.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qsl, quote, unquote

import numpy as np
from numpy.typing import NDArray

from expunge.crypto import canonical
from expunge.errors import BackboneError, MissingExtraError
from expunge.ridge.spec import Spec

_PLAIN = "/:,;@ "  # needs no escape within an option, and is easier to read without


def written(
    kind: str, location: str, options: Mapping[str, str], defaults: Mapping[str, str]
) -> str:
    """The description, without the options that have their default values."""
    given = [(name, value) for name, value in options.items() if defaults.get(name) != value]
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe=_PLAIN)}" for name, value in given)
    escaped_location = location.replace("%", "%25").replace("?", "%3F")
    return f"{kind}:{escaped_location}?{query}" if query else f"{kind}:{escaped_location}"


def parsed(text: str) -> tuple[str, str, dict[str, str]]:
    """Kind, location and options."""
    kind, colon, rest = text.partition(":")
    escaped_location, _, query = rest.partition("?")
    if not colon or not kind or not escaped_location:
        raise BackboneError(
            f"{text!r} describes no backbone: write KIND:LOCATION?option=value, such as "
            "hf:folder?pooling=cls"
        )
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
        location = unquote(escaped_location, errors="strict")
    except ValueError as problem:
        raise BackboneError(
            f"the options of {text!r} cannot be read ({problem}): write option=value&option=value"
        ) from problem
    options = dict(pairs)
    if len(options) != len(pairs):
        raise BackboneError(f"{text!r} gives an option twice; give each once")
    return kind, location, options


def joined(names: Sequence[str]) -> str:
    """Names of files as one option, with `;` between them.

    Law: `listed(joined(names)) == tuple(names)`.
    """
    return ";".join(name.replace("%", "%25").replace(";", "%3B") for name in names)


def listed(value: str | None) -> tuple[str, ...]:
    """The inverse of `joined`; none if the option is not given."""
    return tuple(unquote(name) for name in value.split(";")) if value else ()


class Options:
    """The options of one description, taken one by one; `finish` refuses the unused ones."""

    def __init__(self, text: str, options: Mapping[str, str]) -> None:
        self._text = text
        self._left = dict(options)
        self._known: list[str] = []

    def text(self, name: str, default: str | None = None) -> str | None:
        """An option as it is written."""
        self._known.append(name)
        return self._left.pop(name, default)

    def needed(self, name: str) -> str:
        """An option that has no default."""
        value = self.text(name)
        if value is None:
            raise BackboneError(f"{self._text!r} lacks the option {name}: add {name}=...")
        return value

    def integer(self, name: str, default: int | None = None) -> int | None:
        """An option that is an integer."""
        value = self.text(name)
        try:
            return default if value is None else int(value)
        except ValueError as problem:
            raise BackboneError(f"{self._text!r}: {name}={value} must be an integer") from problem

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """An option that is a list of numbers with commas between them."""
        value = self.text(name)
        try:
            return None if value is None else tuple(float(part) for part in value.split(","))
        except ValueError as problem:
            raise BackboneError(
                f"{self._text!r}: {name}={value} must be numbers with commas between them"
            ) from problem

    def yes(self, name: str) -> bool:
        """An option that is yes or no; no if it is not given."""
        value = self.text(name, "no")
        if value not in ("yes", "no"):
            raise BackboneError(f"{self._text!r}: {name}={value} must be yes or no")
        return value == "yes"

    def finish(self) -> None:
        """Raise BackboneError for unknown options: nothing else than was meant is computed."""
        if self._left:
            raise BackboneError(
                f"{self._text!r} has unknown options {', '.join(sorted(self._left))}; known are "
                f"{', '.join(sorted(self._known))}"
            )


Setting = str | int | bool | float | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]

_DOMAIN = b"expunge/backbone/1\n"


def fingerprint_of(
    kind: str, *, weights: Mapping[str, str], settings: Mapping[str, Setting]
) -> str:
    """`sha256:` and the digest over kind, digests of weights by name, and settings."""
    content = {
        "kind": kind,
        "settings": {name: _plain(value) for name, value in settings.items()},
        "weights": dict(weights),
    }
    return f"sha256:{hashlib.sha256(_DOMAIN + canonical.encode(content)).hexdigest()}"


def digest_of_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise BackboneError(
            f"the weights file {os.fspath(path)} cannot be read: {problem.strerror}; check the path"
        ) from problem


@contextmanager
def unchanged(paths: Iterable[Path]) -> Iterator[None]:
    """Refuse if one of these files is replaced within the block: what was hashed would not be what
    was loaded.
    """
    before = {path: _identity(path) for path in paths}
    yield
    for path, identity in before.items():
        if _identity(path) != identity:
            raise BackboneError(
                f"{path} changed while the backbone was being loaded; load it again when it is "
                "complete"
            )


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _plain(value: Setting) -> object:
    """Floats as hexadecimal text, which is exact and the same everywhere."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def needed(module: str, extra: str) -> Any:
    """The module, or MissingExtraError that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        library = module.partition(".")[0]
        if problem.name is not None and problem.name.partition(".")[0] != library:
            # It is there, and lacks something of its own
            reason = f"{library} cannot be imported: {problem}"
        else:
            reason = f"{library} is not installed"
        raise MissingExtraError(
            f"{reason}. This backbone needs it: pip install 'expunge[{extra}]'"
        ) from problem


def versions(*distributions: str) -> dict[str, str]:
    """The installed versions of these distributions."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow to import

    installed = {}
    for name in distributions:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = "unknown"
    return installed


Features = NDArray[np.floating[Any]]  # float32, or float64 where a backbone's dtype says so
Progress = Callable[[int], object]
DType = Literal["float32", "float64"]


class Backbone(ABC):
    """What turns samples into features: frozen, deterministic, and known by its fingerprint.

    Adapters differ in what they take for a sample; their documentation says it. A subclass computes
    features in `_run` and describes itself in `text`.

    Parameters
    ----------
    fingerprint : str
        What `Spec.backbone` pins; not empty.
    dim : int
        The length of a feature; 1 or more.
    dtype : {"float32", "float64"}, default "float32"
        Of the features.
    together : bool, default False
        Whether the samples of a batch go through at once. It is faster, but a feature may then
        depend on its companions in the last bits.

    Raises
    ------
    BackboneError
        If a parameter is something else.

    See Also
    --------
    check_backbone : puts a backbone's laws to the test.
    backbone_from : opens a backbone from one line of text.

    Notes
    -----
    Features have the shape (number of samples, dim), the dtype, and are finite. The same call in
    the same environment gives the same bytes. Unless `together`, each sample goes through the
    network alone, so that any batch size, order and companions give the same bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from expunge.backbones import Backbone, check_backbone
    >>> class Lengths(Backbone):
    ...     kind = "lengths"
    ...
    ...     def __init__(self):
    ...         super().__init__(fingerprint="lengths-1", dim=1)
    ...
    ...     @property
    ...     def text(self):
    ...         return "callable:my_module:LENGTHS"
    ...
    ...     def _run(self, samples, first):
    ...         return np.array([[len(sample)] for sample in samples], np.float32)
    >>> Lengths().features(["a", "text"]).tolist()
    [[1.0], [4.0]]
    >>> check_backbone(Lengths(), ["a", "text", "or two"])
    """

    kind: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, *, fingerprint: str, dim: int, dtype: DType = "float32", together: bool = False
    ) -> None:
        if not fingerprint or not isinstance(fingerprint, str):
            raise BackboneError(f"the fingerprint {fingerprint!r} must be a text that is not empty")
        if dtype not in ("float32", "float64"):
            raise BackboneError(f"dtype={dtype!r} must be 'float32' or 'float64'")
        self._fingerprint = fingerprint
        self._dim = positive("dim", dim)
        self._dtype = np.dtype(dtype)
        self._together = together

    @property
    def fingerprint(self) -> str:
        """What `Spec.backbone` pins."""
        return self._fingerprint

    @property
    def dim(self) -> int:
        """The length of a feature."""
        return self._dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of features: float32 or float64."""
        return self._dtype

    @property
    def independent(self) -> bool:
        """Whether a feature depends on its own sample alone, bit for bit."""
        return not self._together

    def features(
        self, samples: Iterable[object], *, batch_size: int = 32, progress: Progress | None = None
    ) -> Features:
        """The features of samples, in their order.

        Parameters
        ----------
        samples : iterable
            What the backbone takes for a sample, one after another.
        batch_size : int, default 32
            The most samples that are held at a time; 1 or more.
        progress : callable, optional
            Called after each batch with the number of samples done so far.

        Returns
        -------
        ndarray of shape (number of samples, dim)
            Of the backbone's dtype, and finite.

        Raises
        ------
        BackboneError
            If a sample cannot be taken, or its feature has another shape or is not finite. The
            message names the sample by its position, and a file by its path.
        """
        size = positive("batch_size", batch_size)
        parts: list[Features] = []
        done = 0
        for batch in _batches(samples, size):
            parts.append(self._compute(batch, done))
            done += len(batch)
            if progress is not None:
                progress(done)
        return np.concatenate([np.empty((0, self.dim), self.dtype), *parts])

    def describe(self) -> dict[str, Any]:
        """How to open this backbone again, and with which libraries it computes here.

        Returns
        -------
        dict
            A JSON value: backbone (its `text`), dim, dtype, fingerprint, independent, and libraries
            with their versions. `backbone_from` takes it in any working directory.
        """
        return {
            "backbone": self.text,
            "dim": self.dim,
            "dtype": self.dtype.name,
            "fingerprint": self.fingerprint,
            "independent": self.independent,
            "libraries": versions(*self.libraries, "numpy"),
        }

    @property
    @abstractmethod
    def text(self) -> str:
        """The description that `backbone_from` takes, with absolute paths."""

    @abstractmethod
    def _run(self, samples: list[Any], first: int) -> NDArray[Any]:
        """Features of these samples in one go; `first` is the position of the first of them, for
        messages.
        """

    def _compute(self, batch: list[object], first: int) -> Features:
        if self._together:
            return self._checked(self._run(batch, first), batch, first)
        return np.concatenate(
            [
                self._checked(self._run([sample], first + i), [sample], first + i)
                for i, sample in enumerate(batch)
            ]
        )

    def _checked(self, output: object, batch: list[object], first: int) -> Features:
        """A copy of the output in the promised form: a network may reuse the memory of its
        output.
        """
        array = np.asarray(output)
        which = named(first, batch[0]) + (
            f" and the {len(batch) - 1} after it" if len(batch) > 1 else ""
        )
        if array.dtype.kind not in "fiu":
            raise BackboneError(f"{which}: the backbone gave {array.dtype}, not numbers")
        if array.shape != (len(batch), self.dim):
            raise BackboneError(
                f"{which}: the backbone gave an array of shape {array.shape}, not "
                f"{(len(batch), self.dim)}; check dim and the choice of output"
            )
        with np.errstate(over="ignore"):  # an overflow becomes infinity and is refused below
            features = array.astype(self.dtype, order="C", copy=True)
        bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
        if bad.size:
            where = int(bad[0])
            raise BackboneError(
                f"{named(first + where, batch[where])}: its feature has NaN or infinity; leave the "
                "sample out, or check weights and preprocessing"
            )
        return features

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text!r} dim={self.dim} {self.fingerprint[:23]}>"


def require_fingerprint(spec: Spec, backbone: Backbone) -> None:
    """Raise unless this is the backbone that the spec pins, with features of its length.

    Parameters
    ----------
    spec : Spec
        Where `backbone` is "", only the length is compared.
    backbone : Backbone
        What is to compute features under the spec.

    Raises
    ------
    BackboneError
        If the fingerprint or the length is another.

    Examples
    --------
    >>> import expunge
    >>> from expunge.backbones import PrecomputedBackbone, require_fingerprint
    >>> backbone = PrecomputedBackbone("features-of-2024", dim=3)
    >>> require_fingerprint(expunge.Spec(dim=3, outputs=1, backbone="features-of-2024"), backbone)
    >>> require_fingerprint(expunge.Spec(dim=2, outputs=1), backbone)
    Traceback (most recent call last):
        ...
    expunge.errors.BackboneError: this backbone gives features of length 3, but the spec ...
    """
    if spec.backbone and spec.backbone != backbone.fingerprint:
        raise BackboneError(
            f"this backbone has the fingerprint {backbone.fingerprint}, but the spec pins "
            f"{spec.backbone}: its features are not comparable with those of the other clients. "
            "Use the weights, preprocessing and output that the federation agreed on"
        )
    if spec.dim != backbone.dim:
        raise BackboneError(
            f"this backbone gives features of length {backbone.dim}, but the spec has "
            f"dim={spec.dim}; choose the output (pooling) that the federation agreed on"
        )


def named(position: int, sample: object) -> str:
    """A sample as messages name it: by position, and by path if it is a file.

    A text is never shown, as it may be personal.
    """
    return (
        f"sample {position} ({os.fspath(sample)!s})"
        if isinstance(sample, os.PathLike)
        else f"sample {position}"
    )


def positive(name: str, value: object) -> int:
    """`value`, if it is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise BackboneError(f"{name}={value!r} must be an integer of at least 1")
    return int(value)


def _batches(samples: Iterable[object], size: int) -> Iterator[list[object]]:
    if isinstance(samples, (str, bytes, os.PathLike, dict)) or not isinstance(samples, Iterable):
        raise BackboneError(
            "samples must be a list or another iterable of samples, not one "
            f"{type(samples).__name__}"
        )
    iterator = iter(samples)
    while batch := list(islice(iterator, size)):
        yield batch


def check_backbone(backbone: Backbone, samples: Sequence[object]) -> None:
    """Raise unless the backbone keeps its laws on these samples.

    Features are computed several times: again, backwards, and in batches of other sizes. Passing
    proves nothing for other samples.

    Parameters
    ----------
    backbone : Backbone
        Ours or your own.
    samples : sequence
        What to try; at least one, and best three different ones.

    Raises
    ------
    BackboneError
        If there are no samples, or a law is broken. The message says which.

    Examples
    --------
    >>> import itertools
    >>> from expunge.backbones import CallableBackbone, check_backbone
    >>> counter = itertools.count()
    >>> counting = CallableBackbone(
    ...     lambda samples: [[next(counter)] for _ in samples], name="counter", version="1", dim=1
    ... )
    >>> check_backbone(counting, ["a", "b", "c"])
    Traceback (most recent call last):
        ...
    expunge.errors.BackboneError: this backbone breaks a law: the same call gave other features: ...
    """
    given = list(samples)
    if not given:
        raise BackboneError("check_backbone needs samples to try")
    fingerprint = backbone.fingerprint
    reported: list[int] = []
    first = backbone.features(given, batch_size=2, progress=reported.append)
    steps = [*range(2, len(given), 2), len(given)]
    _require(reported == steps, f"progress was told {reported}, not {steps}")
    _require(first.shape == (len(given), backbone.dim), f"the features have shape {first.shape}")
    _require(
        first.dtype == backbone.dtype,
        f"the features have dtype {first.dtype}, not {backbone.dtype}",
    )
    _require(bool(np.isfinite(first).all()), "the features are not finite")
    _require(
        _same(first, backbone.features(given, batch_size=2)),
        "the same call gave other features: it is not deterministic",
    )
    if backbone.independent:
        backwards = backbone.features(given[::-1], batch_size=len(given))[::-1]
        _require(
            _same(first, backwards),
            "features depend on order or companions, though the backbone calls itself independent",
        )
        alone = np.concatenate([backbone.features([sample], batch_size=1) for sample in given])
        _require(
            _same(first, alone),
            "features depend on companions, though the backbone calls itself independent",
        )
    empty = backbone.features([])
    _require(
        empty.shape == (0, backbone.dim) and empty.dtype == backbone.dtype,
        f"no samples gave the shape {empty.shape}",
    )
    canonical.encode(backbone.describe())
    _require(
        backbone.describe()["fingerprint"] == backbone.fingerprint == fingerprint,
        "the fingerprint changed with use",
    )


def _same(left: Features, right: Features) -> bool:
    return left.tobytes() == right.tobytes()


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise BackboneError(f"this backbone breaks a law: {problem}")
