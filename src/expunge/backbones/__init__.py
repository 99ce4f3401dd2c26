"""Adapters that turn samples into features, each with a fingerprint that the spec pins.

The libraries behind them are extras (`expunge[onnx]`, `expunge[huggingface]`, `expunge[timm]`),
imported when first used.
"""

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
