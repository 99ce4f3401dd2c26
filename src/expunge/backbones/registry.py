"""Backbones from one line of text, as the command line takes them and `Backbone.describe` gives
them back.

    hf:FOLDER?pooling=cls|mean|pooler&modality=image|text&max_length=N&threads=N&together=yes
    timm:ARCHITECTURE?weights=FILE&pooling=avg|token|...     timm:FOLDER
    onnx:MODEL?output=NAME&pooling=none|cls|mean&external=A;B&dim=N&threads=N&together=yes
         for images also: size=H,W&resize=shortest|stretch|none&resize_to=N
         &interpolation=bicubic|...&mean=A,B,C&std=A,B,C
                          &channels=RGB|BGR|L&layout=NCHW|NHWC
    callable:MODULE:FUNCTION?name=...&version=...&dim=N&weights=A;B
         &dtype=float32|float64&together=yes
    callable:MODULE:NAME                                     NAME being a Backbone
    precomputed:FINGERPRINT?dim=N&dtype=float64|float32

A description runs what it names: `callable` imports a module. Open only descriptions that you wrote
yourself.

The two kinds that need no library are here: `CallableBackbone`, any Python function with a name and
a version that its author answers for, and `PrecomputedBackbone`, features computed elsewhere.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from expunge.backbones.base import (
    Backbone,
    DType,
    Options,
    digest_of_file,
    fingerprint_of,
    joined,
    listed,
    named,
    parsed,
    positive,
    written,
)
from expunge.backbones.huggingface import HuggingFaceBackbone
from expunge.backbones.images import ImagePreprocessing
from expunge.backbones.onnx import OnnxBackbone
from expunge.backbones.timm import TimmBackbone
from expunge.errors import BackboneError, ExpungeError

Function = Callable[[list[Any]], Any]
_Maker = Callable[[], Backbone]


class CallableBackbone(Backbone):
    """A Python function as a backbone; a sample is whatever the function takes.

    Parameters
    ----------
    function : callable
        Takes a list of samples and returns an array of shape (number of samples, dim).
    name : str
        Identifies the function in the fingerprint; not empty.
    version : str
        Identifies its code in the fingerprint; not empty. Change it whenever the function computes
        something else.
    dim : int
        The length of a feature; 1 or more.
    weights : sequence of paths, default ()
        Files whose bytes the function uses; they enter the fingerprint in their order.
    dtype : {"float32", "float64"}, default "float32"
        Of the features.
    together : bool, default False
        As for `Backbone`.

    Raises
    ------
    BackboneError
        If a parameter is something else, or a file of weights cannot be read.

    Notes
    -----
    The fingerprint covers name, version, dim, dtype and the bytes of `weights`. It cannot cover the
    function's code. `check_backbone` tries out whether the function is deterministic.

    Examples
    --------
    >>> import numpy as np
    >>> from expunge.backbones import CallableBackbone
    >>> def moments(samples):
    ...     return np.array([[np.mean(sample), np.std(sample)] for sample in samples])
    >>> backbone = CallableBackbone(moments, name="moments", version="1", dim=2)
    >>> backbone.features([[1.0, 3.0], [2.0, 2.0]]).tolist()
    [[2.0, 1.0], [2.0, 0.0]]
    >>> backbone.fingerprint[:14]
    'sha256:...'
    """

    kind: ClassVar[str] = "callable"

    def __init__(
        self,
        function: Function,
        *,
        name: str,
        version: str,
        dim: int,
        weights: Sequence[str | os.PathLike[str]] = (),
        dtype: DType = "float32",
        together: bool = False,
    ) -> None:
        if not callable(function):
            raise BackboneError(
                f"{function!r} cannot be called; give a function of a list of samples"
            )
        for what, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or not value:
                raise BackboneError(
                    f"{what}={value!r} must be a text that is not empty: it stands for the code "
                    "in the fingerprint"
                )
        if isinstance(weights, (str, os.PathLike)):
            raise BackboneError("weights must be a list of files, even for one file")
        self._function = function
        self._name, self._version = name, version
        self._weights = tuple(os.path.abspath(file) for file in weights)
        fingerprint = fingerprint_of(
            self.kind,
            weights={str(index): digest_of_file(file) for index, file in enumerate(self._weights)},
            settings={
                "name": name,
                "version": version,
                "dim": positive("dim", dim),
                "dtype": dtype,
            },
        )
        super().__init__(fingerprint=fingerprint, dim=dim, dtype=dtype, together=together)

    @property
    def text(self) -> str:
        """`callable:MODULE:FUNCTION?...`, which opens again if the function can be imported."""
        function = getattr(self._function, "__qualname__", type(self._function).__qualname__)
        module = getattr(self._function, "__module__", None) or type(self._function).__module__
        options = {
            "name": self._name,
            "version": self._version,
            "dim": str(self.dim),
            "dtype": self.dtype.name,
            "together": "yes" if self._together else "no",
        }
        options |= {"weights": joined(self._weights)} if self._weights else {}
        return written(
            self.kind, f"{module}:{function}", options, {"dtype": "float32", "together": "no"}
        )

    def _run(self, samples: list[Any], first: int) -> NDArray[Any]:
        try:
            output: NDArray[Any] = self._function(samples)
        except ExpungeError:
            raise
        except (
            Exception
        ) as problem:  # a stranger's function could not take the sample, and may quote it
            raise BackboneError(
                f"{named(first, samples[0])}: the function {self._name!r} failed with "
                f"{type(problem).__name__}"
            ) from problem
        return output


class PrecomputedBackbone(Backbone):
    """Features computed elsewhere: a sample is a row of `dim` numbers already.

    Parameters
    ----------
    fingerprint : str
        The text that the federation agreed on; not empty.
    dim : int
        The length of a feature; 1 or more.
    dtype : {"float64", "float32"}, default "float64"
        With "float64" every float is taken as it is; "float32" rounds to the nearest.

    Raises
    ------
    BackboneError
        If a parameter is something else.

    Examples
    --------
    >>> from expunge.backbones import PrecomputedBackbone
    >>> backbone = PrecomputedBackbone("features-of-2024", dim=2)
    >>> backbone.features([[0.5, 1.0]]).tolist()
    [[0.5, 1.0]]
    >>> backbone.text
    'precomputed:features-of-2024?dim=2'
    """

    kind: ClassVar[str] = "precomputed"

    def __init__(self, fingerprint: str, *, dim: int, dtype: DType = "float64") -> None:
        super().__init__(fingerprint=fingerprint, dim=dim, dtype=dtype)

    @property
    def text(self) -> str:
        """`precomputed:FINGERPRINT?dim=N`."""
        options = {"dim": str(self.dim), "dtype": self.dtype.name}
        return written(self.kind, self.fingerprint, options, {"dtype": "float64"})

    def _run(self, samples: list[Any], first: int) -> NDArray[Any]:
        rows = []
        for position, sample in enumerate(samples, first):
            row = np.asarray(sample)
            if row.shape != (self.dim,):
                raise BackboneError(
                    f"{named(position, sample)} has shape {row.shape}, not {(self.dim,)}: give a "
                    "row of features for each sample"
                )
            rows.append(row)
        return np.stack(rows)

    def _compute(self, batch: list[object], first: int) -> Any:
        # rows do not meet, so a whole batch changes nothing
        return self._checked(self._run(batch, first), batch, first)


def backbone_from(description: str | Mapping[str, Any]) -> Backbone:
    """The backbone of a description.

    The backbone of `b.describe()` has the fingerprint of b, or is refused because its files have
    changed.

    Parameters
    ----------
    description : str or mapping
        A text such as "hf:FOLDER?pooling=cls", or what `Backbone.describe` gave. It runs what it
        names ("callable" imports a module): open only descriptions that you wrote yourself.

    Returns
    -------
    Backbone
        Ready to compute features.

    Raises
    ------
    BackboneError
        If the kind or an option is unknown, an option is missing, the files cannot be used, or the
        fingerprint is not the one that was recorded.
    MissingExtraError
        If the library behind it is not installed.

    Notes
    -----
    Kinds are hf, timm, onnx, callable and precomputed. The options of each are those of its class;
    they are listed at the top of the module expunge.backbones.registry.

    Examples
    --------
    >>> from expunge.backbones import backbone_from
    >>> backbone = backbone_from("precomputed:features-of-2024?dim=768")
    >>> backbone.dim
    768
    >>> backbone_from(backbone.describe()).fingerprint == backbone.fingerprint
    True
    """
    if isinstance(description, str):
        return _opened(description)
    if not isinstance(description, Mapping) or not isinstance(description.get("backbone"), str):
        raise BackboneError(
            'a description must be a text such as "hf:folder?pooling=cls", or what '
            "Backbone.describe() gave"
        )
    backbone = _opened(description["backbone"])
    recorded = description.get("fingerprint", backbone.fingerprint)
    if recorded != backbone.fingerprint:
        raise BackboneError(
            f"{description['backbone']} now has the fingerprint {backbone.fingerprint}, where "
            f"{recorded} was recorded: weights, "
            "preprocessing or options have changed. Put back what was there"
        )
    return backbone


def _opened(text: str) -> Backbone:
    kind, location, given = parsed(text)
    if kind not in _KINDS:
        raise BackboneError(
            f"{kind!r} in {text!r} is no kind of backbone; there are {', '.join(sorted(_KINDS))}"
        )
    options = Options(text, given)
    make = _KINDS[kind](location, options)
    options.finish()
    return make()


def _running(options: Options) -> dict[str, Any]:
    """How a model is run."""
    return {"threads": options.integer("threads", 1), "together": options.yes("together")}


def _hf(location: str, options: Options) -> _Maker:
    return partial(
        HuggingFaceBackbone,
        location,
        pooling=options.text("pooling"),
        modality=options.text("modality"),
        max_length=options.integer("max_length"),
        **_running(options),
    )


def _timm(location: str, options: Options) -> _Maker:
    return partial(
        TimmBackbone,
        location,
        weights=options.text("weights"),
        pooling=options.text("pooling"),
        **_running(options),
    )


def _onnx(location: str, options: Options) -> _Maker:
    pooling: Any = options.text("pooling", "none")
    return partial(
        OnnxBackbone,
        location,
        preprocessing=ImagePreprocessing.from_options(options),
        output=options.text("output"),
        pooling=pooling,
        external=listed(options.text("external")),
        dim=options.integer("dim"),
        **_running(options),
    )


def _precomputed(location: str, options: Options) -> _Maker:
    dtype: Any = options.text("dtype", "float64")  # judged by the backbone, as pooling is
    return partial(PrecomputedBackbone, location, dim=_integer_needed(options, "dim"), dtype=dtype)


def _callable(location: str, options: Options) -> _Maker:
    target = _imported(location)
    if isinstance(target, Backbone):
        return lambda: target
    dtype: Any = options.text("dtype", "float32")
    return partial(
        CallableBackbone,
        target,
        name=options.needed("name"),
        version=options.needed("version"),
        dim=_integer_needed(options, "dim"),
        weights=listed(options.text("weights")),
        dtype=dtype,
        together=options.yes("together"),
    )


def _imported(location: str) -> Any:
    module, colon, path = location.partition(":")
    if not colon or not module or not path:
        raise BackboneError(f"callable:{location} must be callable:MODULE:FUNCTION")
    try:
        target: Any = importlib.import_module(module)
        for name in path.split("."):
            target = getattr(target, name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BackboneError(
            f"callable:{location} cannot be imported: {problem}; check the names, and that the "
            "module's folder is on PYTHONPATH"
        ) from problem
    return target


def _integer_needed(options: Options, name: str) -> int:
    value = options.integer(name)
    return int(options.needed(name)) if value is None else value


_KINDS: dict[str, Callable[[str, Options], _Maker]] = {
    "callable": _callable,
    "hf": _hf,
    "onnx": _onnx,
    "precomputed": _precomputed,
    "timm": _timm,
}
