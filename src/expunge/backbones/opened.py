"""Backbones from one line of text, as the command line takes them and `Backbone.describe` gives them back.

    hf:FOLDER?pooling=cls|mean|pooler&modality=image|text&max_length=N&threads=N&together=yes
    timm:ARCHITECTURE?weights=FILE&pooling=avg|token|...     timm:FOLDER
    onnx:MODEL?output=NAME&pooling=none|cls|mean&external=A;B&dim=N&threads=N&together=yes
         for images also: size=H,W&resize=shortest|stretch|none&resize_to=N&interpolation=bicubic|...&mean=A,B,C&std=A,B,C
                          &channels=RGB|BGR|L&layout=NCHW|NHWC
    callable:MODULE:FUNCTION?name=...&version=...&dim=N&weights=A;B&dtype=float32|float64&together=yes
    callable:MODULE:NAME                                     NAME being a Backbone
    precomputed:FINGERPRINT?dim=N&dtype=float64|float32

A description runs what it names: `callable` imports a module. Open only descriptions that you wrote yourself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from expunge.backbones.base import Backbone
from expunge.backbones.callable import CallableBackbone
from expunge.backbones.description import Options, listed, parsed
from expunge.backbones.huggingface import HuggingFaceBackbone
from expunge.backbones.onnx import OnnxBackbone
from expunge.backbones.precomputed import PrecomputedBackbone
from expunge.backbones.preprocessing import ImagePreprocessing
from expunge.backbones.timm import TimmBackbone
from expunge.errors import BackboneError


def backbone_from(description: str | Mapping[str, Any]) -> Backbone:
    """The backbone that a text, or what `describe` gave, stands for.

    Law: `backbone_from(b.describe()).fingerprint == b.fingerprint`, or BackboneError if its files have changed since.
    """
    if isinstance(description, str):
        return _opened(description)
    if not isinstance(description, Mapping) or not isinstance(description.get("backbone"), str):
        raise BackboneError('a description must be a text such as "hf:folder?pooling=cls", or what Backbone.describe() gave')
    backbone = _opened(description["backbone"])
    recorded = description.get("fingerprint", backbone.fingerprint)
    if recorded != backbone.fingerprint:
        raise BackboneError(
            f"{description['backbone']} now has the fingerprint {backbone.fingerprint}, where {recorded} was recorded: weights, "
            "preprocessing or options have changed. Put back what was there"
        )
    return backbone


def _opened(text: str) -> Backbone:
    kind, location, given = parsed(text)
    if kind not in _KINDS:
        raise BackboneError(f"{kind!r} in {text!r} is no kind of backbone; there are {', '.join(sorted(_KINDS))}")
    options = Options(text, given)
    return _KINDS[kind](location, options)


def _hf(location: str, options: Options) -> Backbone:
    given: dict[str, Any] = {
        "pooling": options.text("pooling"),
        "modality": options.text("modality"),
        "max_length": options.integer("max_length"),
        "threads": options.integer("threads", 1),
        "together": options.yes("together"),
    }
    options.finish()
    return HuggingFaceBackbone(location, **given)


def _timm(location: str, options: Options) -> Backbone:
    given: dict[str, Any] = {
        "weights": options.text("weights"),
        "pooling": options.text("pooling"),
        "threads": options.integer("threads", 1),
        "together": options.yes("together"),
    }
    options.finish()
    return TimmBackbone(location, **given)


def _onnx(location: str, options: Options) -> Backbone:
    given: dict[str, Any] = {
        "preprocessing": ImagePreprocessing.from_options(options),
        "output": options.text("output"),
        "pooling": options.text("pooling", "none"),
        "external": listed(options.text("external")),
        "dim": options.integer("dim"),
        "threads": options.integer("threads", 1),
        "together": options.yes("together"),
    }
    options.finish()
    return OnnxBackbone(location, **given)


def _precomputed(location: str, options: Options) -> Backbone:
    given: dict[str, Any] = {"dim": _integer_needed(options, "dim"), "dtype": options.text("dtype", "float64")}
    options.finish()
    return PrecomputedBackbone(location, **given)


def _callable(location: str, options: Options) -> Backbone:
    found = _imported(location)
    if isinstance(found, Backbone):
        options.finish()
        return found
    given: dict[str, Any] = {
        "name": options.needed("name"),
        "version": options.needed("version"),
        "dim": _integer_needed(options, "dim"),
        "weights": listed(options.text("weights")),
        "dtype": options.text("dtype", "float32"),
        "together": options.yes("together"),
    }
    options.finish()
    return CallableBackbone(found, **given)


def _imported(location: str) -> Any:
    module, colon, path = location.partition(":")
    if not colon or not module or not path:
        raise BackboneError(f"callable:{location} must be callable:MODULE:FUNCTION")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BackboneError(
            f"callable:{location} cannot be imported: {problem}; check the names, and that the module's folder is on PYTHONPATH"
        ) from problem
    return found


def _integer_needed(options: Options, name: str) -> int:
    value = options.integer(name)
    return int(options.needed(name)) if value is None else value


_KINDS: dict[str, Callable[[str, Options], Backbone]] = {
    "callable": _callable,
    "hf": _hf,
    "onnx": _onnx,
    "precomputed": _precomputed,
    "timm": _timm,
}
