"""Adapters that turn samples into features, each with a fingerprint that the spec pins.

The libraries behind them are extras (`expunge[onnx]`, `expunge[huggingface]`, `expunge[timm]`),
imported when first used.
"""

from typing import TYPE_CHECKING

from expunge._lazy import lazy_names

if TYPE_CHECKING:
    from expunge.backbones.base import Backbone, check_backbone, require_fingerprint
    from expunge.backbones.huggingface import HuggingFaceBackbone
    from expunge.backbones.images import ImagePreprocessing
    from expunge.backbones.onnx import OnnxBackbone
    from expunge.backbones.registry import CallableBackbone, PrecomputedBackbone, backbone_from
    from expunge.backbones.timm import TimmBackbone

__all__ = [
    "Backbone",
    "CallableBackbone",
    "HuggingFaceBackbone",
    "ImagePreprocessing",
    "OnnxBackbone",
    "PrecomputedBackbone",
    "TimmBackbone",
    "backbone_from",
    "check_backbone",
    "require_fingerprint",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Backbone": "expunge.backbones.base",
        "CallableBackbone": "expunge.backbones.registry",
        "HuggingFaceBackbone": "expunge.backbones.huggingface",
        "ImagePreprocessing": "expunge.backbones.images",
        "OnnxBackbone": "expunge.backbones.onnx",
        "PrecomputedBackbone": "expunge.backbones.registry",
        "TimmBackbone": "expunge.backbones.timm",
        "backbone_from": "expunge.backbones.registry",
        "check_backbone": "expunge.backbones.base",
        "require_fingerprint": "expunge.backbones.base",
    },
)
