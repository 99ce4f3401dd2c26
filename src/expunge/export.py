"""Heads as files that other tools read: safetensors, ONNX with one linear layer, and arrays.

Laws of the first two: the same head gives the same bytes; loading gives back the head (spec,
weights, digest, error bound) bit for bit, or raises FormatError. What is stored under the one
metadata key "expunge" is described in docs/how-to/export-a-head.md. Diagnostics are not stored:
they belong to the path, not to the head.

These two hold the weights as a torch.nn.Linear does: `weight` (columns, dim) and, where the spec
has an intercept, `bias` (columns), in float64, which is exact. The libraries are optional
(`expunge[export]`) and imported only when asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import math
import os
import secrets
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from expunge._lazy import public_dir
from expunge.errors import ExpungeError, FormatError, MissingExtraError
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec

__all__ = [
    "from_onnx",
    "from_safetensors",
    "load_onnx",
    "load_safetensors",
    "save_npz",
    "save_onnx",
    "save_safetensors",
    "to_onnx",
    "to_safetensors",
]
__dir__ = public_dir(__name__)

Float = NDArray[np.float64]
InputType = Literal["float64", "float32"]

_KEY = "expunge"
_FORMAT = "head"
_VERSION = 1
_MOST_WEIGHT = 2.0**53
_ONNX_OPSET = 13  # of 2020: every runtime since knows Gemm and Cast on doubles in this form
_ONNX_IR = 7
MOST_ONNX_BYTES = (1 << 31) - (1 << 20)  # a protobuf message must stay below 2 GiB


def save_safetensors(head: Head, path: str | os.PathLike[str]) -> None:
    """Write a head as a safetensors file, which appears whole or not at all.

    Parameters
    ----------
    head : Head
        What to write.
    path : str or path-like
        The file; an existing one is replaced.

    Raises
    ------
    MissingExtraError
        If safetensors is not installed (`expunge[export]`).

    See Also
    --------
    load_safetensors : reads it back.
    to_safetensors : the same as bytes.

    Examples
    --------
    >>> import tempfile
    >>> import expunge
    >>> from expunge.export import load_safetensors, save_safetensors
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> head = expunge.solve(expunge.Statistics.of(spec, [[1.0], [2.0]], [3.0, 5.0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_safetensors(head, f"{folder}/head.safetensors")
    ...     load_safetensors(f"{folder}/head.safetensors") == head
    True
    """
    _write(path, to_safetensors(head))


def load_safetensors(path: str | os.PathLike[str]) -> Head:
    """The head of a file that `save_safetensors` wrote, its digest checked.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    Head
        Equal to the one that was written, bit for bit; without diagnostics.

    Raises
    ------
    FormatError
        If the file is truncated, altered, or not a head that Expunge wrote.
    MissingExtraError
        If safetensors is not installed (`expunge[export]`).
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge.export import load_safetensors
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "head.safetensors")
    ...     written = path.write_bytes(b"something else")
    ...     load_safetensors(path)
    Traceback (most recent call last):
        ...
    expunge.errors.FormatError: these bytes are not a whole safetensors file: ...
    """
    return from_safetensors(Path(path).read_bytes())


def save_onnx(
    head: Head, path: str | os.PathLike[str], *, input_type: InputType = "float64"
) -> None:
    """Write a head as an ONNX file, which appears whole or not at all.

    Parameters
    ----------
    head : Head
        What to write.
    path : str or path-like
        The file; an existing one is replaced.
    input_type : {"float64", "float32"}, default "float64"
        As for `to_onnx`.

    Raises
    ------
    FormatError
        If the head is too large for an ONNX file (2 GiB), or `input_type` is something else.
    MissingExtraError
        If onnx is not installed (`expunge[export]`).

    See Also
    --------
    load_onnx : reads it back.
    to_onnx : the same as bytes.

    Examples
    --------
    >>> import tempfile
    >>> import expunge
    >>> from expunge.export import load_onnx, save_onnx
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> head = expunge.solve(expunge.Statistics.of(spec, [[1.0], [2.0]], [3.0, 5.0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_onnx(head, f"{folder}/head.onnx", input_type="float32")
    ...     load_onnx(f"{folder}/head.onnx").digest == head.digest
    True
    """
    _write(path, to_onnx(head, input_type=input_type))


def load_onnx(path: str | os.PathLike[str]) -> Head:
    """The head of a file that `save_onnx` wrote, its digest checked.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    Head
        Equal to the one that was written, bit for bit; without diagnostics.

    Raises
    ------
    FormatError
        If the file is truncated, altered, or not a model that `save_onnx` wrote.
    MissingExtraError
        If onnx is not installed (`expunge[export]`).
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge.export import load_onnx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "head.onnx")
    ...     written = path.write_bytes(b"something else")
    ...     load_onnx(path)
    Traceback (most recent call last):
        ...
    expunge.errors.FormatError: these bytes are not a whole ONNX model: ...
    """
    return from_onnx(Path(path).read_bytes())


def save_npz(head: Head, path: str | os.PathLike[str]) -> None:
    """Write weights, labels and digest for NumPy; no head can be loaded from it.

    The file holds `weights` (width, columns) in float64, which is exact, with the intercept as the
    last row; `labels` as texts, none in regression; and `digest`. The rest of the spec is not
    there. The file appears whole or not at all.

    Parameters
    ----------
    head : Head
        What to write.
    path : str or path-like
        The file, whose name is taken as it is; an existing one is replaced.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import expunge
    >>> from expunge.export import save_npz
    >>> spec = expunge.Spec(dim=1, labels=("cat", "dog"))
    >>> head = expunge.solve(expunge.Statistics.of(spec, [[1.0], [2.0]], ["cat", "dog"]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_npz(head, f"{folder}/head.npz")
    ...     with np.load(f"{folder}/head.npz") as arrays:
    ...         arrays["labels"].tolist(), (arrays["weights"] == head.weights).all().item()
    (['cat', 'dog'], True)
    """
    data = io.BytesIO()
    labels = np.array([str(label) for label in head.spec.labels or ()])
    np.savez(data, weights=head.weights, labels=labels, digest=np.array(head.digest))
    _write(path, data.getvalue())


# -- safetensors -----------------------------------------------------------------------------------


def to_safetensors(head: Head) -> bytes:
    """The head as the bytes of a safetensors file; the same head gives the same bytes.

    Parameters
    ----------
    head : Head
        What to write.

    Returns
    -------
    bytes
        Tensors `weight` (columns, dim) and, with an intercept, `bias` (columns), in float64 as a
        torch.nn.Linear has them; everything else under the metadata key "expunge".

    Raises
    ------
    MissingExtraError
        If safetensors is not installed (`expunge[export]`).

    Examples
    --------
    >>> import expunge
    >>> from expunge.export import from_safetensors, to_safetensors
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> head = expunge.solve(expunge.Statistics.of(spec, [[1.0], [2.0]], [3.0, 5.0]))
    >>> from_safetensors(to_safetensors(head)).digest == head.digest
    True
    """
    data: bytes = _extra("safetensors.numpy").save(
        _tensors(head), metadata={_KEY: _description(head)}
    )
    return data


def from_safetensors(data: bytes) -> Head:
    """The head that `to_safetensors` wrote, bit for bit, its digest checked.

    Parameters
    ----------
    data : bytes
        A whole safetensors file.

    Returns
    -------
    Head
        With spec, weights, digest and error bound; without diagnostics.

    Raises
    ------
    FormatError
        If the bytes are truncated, altered, or not a head that Expunge wrote.
    MissingExtraError
        If safetensors is not installed (`expunge[export]`).

    Examples
    --------
    >>> import expunge
    >>> from expunge.export import from_safetensors, to_safetensors
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> head = expunge.solve(expunge.Statistics.of(spec, [[1.0], [2.0]], [3.0, 5.0]))
    >>> data = to_safetensors(head)
    >>> from_safetensors(data[:-1] + bytes([data[-1] ^ 1]))
    Traceback (most recent call last):
        ...
    expunge.errors.FormatError: this head's file has been altered: ...
    """
    library = _extra("safetensors")
    try:
        entries = dict(library.deserialize(bytes(data)))
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except (library.SafetensorError, ValueError) as problem:
        raise FormatError(
            f"these bytes are not a whole safetensors file: {problem}; ask for it again"
        ) from problem
    tensors = {}
    for name, entry in entries.items():
        if entry["dtype"] != "F64":
            _refuse(
                f"its tensor {name!r} holds {entry['dtype']}, not F64; conversion to another type "
                "loses the digest"
            )
        tensors[name] = _tensor(name, entry["data"], entry["shape"])
    return _rebuilt(metadata.get(_KEY), tensors)


# -- ONNX ------------------------------------------------------------------------------------------


def to_onnx(head: Head, *, input_type: InputType = "float64") -> bytes:
    """The head as the bytes of an ONNX model with one linear layer.

    The model has the input `features` (batch, dim) and the output `scores` (batch, columns) in
    float64. The same head gives the same bytes.

    Parameters
    ----------
    head : Head
        What to write.
    input_type : {"float64", "float32"}, default "float64"
        The type of the input. With "float32" the features are cast to float64 first, which is
        exact; all arithmetic is in float64 either way.

    Returns
    -------
    bytes
        A model of opset 13, with everything else under the metadata key "expunge".

    Raises
    ------
    FormatError
        If the head is too large for an ONNX file (2 GiB), or `input_type` is something else.
    MissingExtraError
        If onnx is not installed (`expunge[export]`).

    Examples
    --------
    >>> import numpy as np
    >>> import onnxruntime
    >>> import expunge
    >>> from expunge.export import to_onnx
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> head = expunge.solve(expunge.Statistics.of(spec, [[1.0], [2.0]], [3.0, 5.0]))
    >>> session = onnxruntime.InferenceSession(to_onnx(head))
    >>> (scores,) = session.run(["scores"], {"features": np.array([[4.0]])})
    >>> np.allclose(scores, head.scores([[4.0]]))
    True
    """
    data: bytes = _model(head, input_type).SerializeToString(deterministic=True)
    return data


def from_onnx(data: bytes) -> Head:
    """The head that `to_onnx` wrote, bit for bit, its digest checked.

    The model must be, node for node, what `to_onnx` makes of its head.

    Parameters
    ----------
    data : bytes
        A whole ONNX model.

    Returns
    -------
    Head
        With spec, weights, digest and error bound; without diagnostics.

    Raises
    ------
    FormatError
        If the bytes are truncated, altered, or not a model that `to_onnx` wrote.
    MissingExtraError
        If onnx is not installed (`expunge[export]`).

    Examples
    --------
    >>> import expunge
    >>> from expunge.export import from_onnx, to_onnx
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> head = expunge.solve(expunge.Statistics.of(spec, [[1.0], [2.0]], [3.0, 5.0]))
    >>> from_onnx(to_onnx(head)) == head
    True
    """
    onnx = _extra("onnx")
    decode_error: type[Exception] = _extra("google.protobuf.message").DecodeError
    try:
        model = onnx.ModelProto.FromString(bytes(data))
    except decode_error as problem:
        raise FormatError(
            f"these bytes are not a whole ONNX model: {problem}; ask for it again"
        ) from problem
    tensors = {}
    for entry in model.graph.initializer:
        if entry.data_type != onnx.TensorProto.DOUBLE:
            _refuse(f"its tensor {entry.name!r} does not hold doubles")
        tensors[entry.name] = _tensor(entry.name, entry.raw_data, list(entry.dims))
    described = [entry.value for entry in model.metadata_props if entry.key == _KEY]
    head = _rebuilt(described[0] if described else None, tensors)
    types = [entry.type.tensor_type.elem_type for entry in model.graph.input]
    if model != _model(head, "float32" if types == [onnx.TensorProto.FLOAT] else "float64"):
        _refuse(
            "its weights are right, but the model around them is not the one linear layer that "
            "was written"
        )
    return head


def _model(head: Head, input_type: str) -> Any:
    """The ONNX model of a head: Gemm in float64, after a Cast where the input is float32."""
    if input_type not in ("float64", "float32"):
        raise FormatError(f"input_type={input_type!r} must be 'float64' or 'float32'")
    if head.integers.nbytes > MOST_ONNX_BYTES:
        raise FormatError(
            f"a head of {head.integers.nbytes} bytes is too large for an ONNX file, which must "
            "stay below 2 GiB; use save_safetensors"
        )
    onnx = _extra("onnx")
    make, kinds = onnx.helper, onnx.TensorProto
    source = "features" if input_type == "float64" else "features_float64"
    casts = (
        []
        if input_type == "float64"
        else [make.make_node("Cast", ["features"], [source], name="cast", to=kinds.DOUBLE)]
    )
    tensors = _tensors(head)
    graph = make.make_graph(
        [*casts, make.make_node("Gemm", [source, *tensors], ["scores"], name="head", transB=1)],
        "expunge_head",
        [
            make.make_tensor_value_info(
                "features", kinds.FLOAT if casts else kinds.DOUBLE, ["batch", head.spec.dim]
            )
        ],
        [make.make_tensor_value_info("scores", kinds.DOUBLE, ["batch", head.spec.columns])],
        [
            make.make_tensor(name, kinds.DOUBLE, array.shape, array.tobytes(), raw=True)
            for name, array in tensors.items()
        ],
    )
    model = make.make_model(
        graph,
        opset_imports=[make.make_opsetid("", _ONNX_OPSET)],
        ir_version=_ONNX_IR,
        producer_name="expunge",
    )
    make.set_model_props(model, {_KEY: _description(head)})
    return model


# -- what both have in common ----------------------------------------------------------------------


def _tensors(head: Head) -> dict[str, Float]:
    """The weights as little-endian float64, laid out as a torch.nn.Linear has them."""
    weights = head.weights.astype("<f8")
    tensors = {"weight": np.ascontiguousarray(weights[: head.spec.dim].T)}
    if head.spec.intercept:
        tensors["bias"] = weights[-1].copy()
    return tensors


def _tensor(name: str, data: bytes, shape: list[int]) -> Float:
    if min(shape, default=1) < 1 or len(data) != 8 * math.prod(shape):
        _refuse(f"its tensor {name!r} of shape {shape} has {len(data)} bytes")
    return np.frombuffer(data, dtype="<f8").reshape(shape)


def _description(head: Head) -> str:
    """Everything but the weights, as canonical JSON that ends with its checksum."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "spec": head.spec.to_dict(),
        "digest": head.digest,
        "error_bound": head.error_bound.hex(),
    }
    return json.dumps({**content, "checksum": _checksum(content)}, separators=(",", ":"))


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"expunge/head-file/{_VERSION}\n{text}".encode()).hexdigest()


def _rebuilt(description: Any, tensors: dict[str, Float]) -> Head:
    """The head of a description and its tensors, refused unless the digest is that of the
    weights.
    """
    spec, digest, error_bound = _described(description)
    shapes = {
        "weight": (spec.columns, spec.dim),
        **({"bias": (spec.columns,)} if spec.intercept else {}),
    }
    tensor_shapes = {name: array.shape for name, array in tensors.items()}
    if tensor_shapes != shapes:
        _refuse(f"its tensors have the shapes {tensor_shapes}, where its spec asks for {shapes}")
    weights = np.concatenate(
        [tensors["weight"].T, *([tensors["bias"][None]] if spec.intercept else [])]
    )
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.ldexp(weights, spec.publication_bits)
    integers = np.where(np.abs(scaled) <= _MOST_WEIGHT, np.rint(scaled), 0.0).astype(np.int64)
    head = Head(spec, np.ascontiguousarray(integers), error_bound)
    wrong = np.argwhere(
        head.weights.view(np.int64)
        != np.ascontiguousarray(weights, dtype=np.float64).view(np.int64)
    )
    if wrong.size:
        row, column = (int(index) for index in wrong[0])
        row_name = "the intercept" if row == spec.dim else f"feature {row}"
        _refuse(
            f"the weight {float(weights[row, column])!r} of {row_name} for column {column} is not "
            "on its publication grid"
        )
    if head.digest != digest:
        _refuse(f"its weights have the digest {head.digest}, but it says {digest}")
    return head


def _described(description: Any) -> tuple[Spec, str, float]:
    """Spec, digest and error bound of a description whose version, keys and checksum are right."""
    if not isinstance(description, str):
        raise FormatError(
            f"this is not a head that Expunge wrote: its metadata has no key {_KEY!r}"
        )
    try:
        content = json.loads(description)
    except (ValueError, RecursionError) as problem:
        raise FormatError(
            f"this head's file has been altered: its metadata is not JSON ({problem}); ask for it "
            "again"
        ) from problem
    if (
        not isinstance(content, dict)
        or content.get("format") != _FORMAT
        or "version" not in content
    ):
        raise FormatError(
            "this is not a head that Expunge wrote: its metadata describes something else"
        )
    if content["version"] != _VERSION:
        raise FormatError(
            f"a head's file of version {content['version']!r} cannot be read; this release reads "
            f"version {_VERSION}"
        )
    checksum = content.pop("checksum", None)
    if checksum != _checksum(content):
        _refuse("its metadata does not have the checksum that it says")
    try:
        spec = Spec.from_dict(content["spec"])
        error_bound = float.fromhex(content["error_bound"])
        digest = str(content["digest"])
    except (ExpungeError, KeyError, TypeError, ValueError, OverflowError) as problem:
        raise FormatError(f"this head's file is not well formed: {problem}") from problem
    if not 0.0 <= error_bound < math.inf:
        _refuse(f"its error bound is {error_bound!r}")
    return spec, digest, error_bound


def _refuse(what: str) -> NoReturn:
    raise FormatError(f"this head's file has been altered: {what}. Ask for it again")


def _extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise MissingExtraError(
            f"{module.partition('.')[0]} is not installed, which is needed to read and write this "
            "kind of file: pip install 'expunge[export]'"
        ) from problem


def _write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write beside the path, then move into place: a reader sees the old file or the whole new one,
    never a part.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
