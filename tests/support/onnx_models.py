"""Small ONNX models, made by hand, whose outputs are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(7)
MATRIX = RNG.standard_normal((12, 5)).astype(np.float32)
KERNEL = RNG.standard_normal((6, 3, 3, 3)).astype(np.float32)


def save(
    path: Path,
    nodes: list[Any],
    inputs: list[tuple[str, list[Any]]],
    outputs: list[str],
    weights: dict[str, Any],
    *,
    kind: int = FLOAT,
    **how: Any,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "made by hand",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    for output in graph.output:
        output.type.tensor_type.elem_type = FLOAT
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        path,
        **how,
    )
    return path


def linear(
    path: Path, *, batch: Any = "n", matrix: Any = MATRIX, length: Any = 12, **how: Any
) -> Path:
    """(n, 12) to (n, 5)."""
    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"])]
    return save(path, nodes, [("x", [batch, length])], ["y"], {"W": matrix}, **how)


def roots(path: Path) -> Path:
    """The square roots of two numbers: NaN for negative ones."""
    return save(path, [helper.make_node("Sqrt", ["x"], ["y"])], [("x", ["n", 2])], ["y"], {})


def convolution(path: Path) -> Path:
    """Images (n, 3, h, w) to maps (n, 6, h', w'), tokens (n, h'w', 6) and the pooled (n, 6)."""
    nodes = [
        helper.make_node("Conv", ["x", "K"], ["c"], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["maps"]),
        helper.make_node("Reshape", ["maps", "flat"], ["f"]),
        helper.make_node("Transpose", ["f"], ["tokens"], perm=[0, 2, 1]),
        helper.make_node("ReduceMean", ["tokens"], ["pooled"], axes=[1], keepdims=0),
    ]
    weights = {"K": KERNEL, "flat": np.array([0, 6, -1], np.int64)}
    return save(path, nodes, [("x", ["n", 3, "h", "w"])], ["maps", "tokens", "pooled"], weights)


def image_network(path: Path) -> Path:
    """Images (n, 3, 224, 224) to (n, 6)."""
    nodes = [
        helper.make_node("Conv", ["x", "K"], ["maps"]),
        helper.make_node("ReduceMean", ["maps"], ["y"], axes=[2, 3], keepdims=0),
    ]
    return save(path, nodes, [("x", ["n", 3, 224, 224])], ["y"], {"K": KERNEL})


def two_inputs(path: Path) -> Path:
    return save(
        path,
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [("a", ["n", 2]), ("b", ["n", 2])],
        ["y"],
        {},
    )


def summed(path: Path) -> Path:
    """One row for the whole batch, which is no feature of a sample."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)]
    return save(path, nodes, [("x", ["n", 2])], ["y"], {})
