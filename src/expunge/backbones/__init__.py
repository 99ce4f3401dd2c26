"""Adapters that turn samples into features, each with a fingerprint that the spec pins.

The libraries behind them are extras (`expunge[onnx]`, `expunge[huggingface]`, `expunge[timm]`), imported when first used.
"""

from expunge.backbones.base import Backbone, require_fingerprint
from expunge.backbones.callable import CallableBackbone
from expunge.backbones.check import check_backbone
from expunge.backbones.huggingface import HuggingFaceBackbone
from expunge.backbones.onnx import OnnxBackbone
from expunge.backbones.opened import backbone_from
from expunge.backbones.precomputed import PrecomputedBackbone
from expunge.backbones.preprocessing import ImagePreprocessing
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
