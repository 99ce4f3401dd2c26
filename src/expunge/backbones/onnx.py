"""OnnxBackbone: a network in an ONNX file, run by ONNX Runtime on the processor."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from expunge.backbones.base import (
    Backbone,
    Setting,
    fingerprint_of,
    joined,
    named,
    needed,
    positive,
    written,
)
from expunge.backbones.images import ImagePreprocessing
from expunge.errors import BackboneError

_EXTRA = "onnx"
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
}
_POOLINGS = ("none", "cls", "mean")
_USUAL_EXTERNAL = (".data", "_data")  # how exporters name the file of weights beside MODEL.onnx
_DEFAULTS = {"pooling": "none", "threads": "1", "together": "no"}


class OnnxBackbone(Backbone):
    """A network in an ONNX file, run by ONNX Runtime on the processor.

    A sample is an image if `preprocessing` is given, else an array of the shape of the network's
    one input.

    Parameters
    ----------
    model : path
        The ONNX file, with one input.
    preprocessing : ImagePreprocessing, optional
        What is done to images; without it samples are arrays.
    output : str, optional
        The output that features are made of; needed where there are several.
    pooling : {"none", "cls", "mean"}, default "none"
        "none" for an output (n, dim); "cls" takes the first token of (n, tokens, dim); "mean" the
        mean over tokens, or over positions of (n, dim, height, width).
    external : sequence of str, default ()
        Files of external data, relative to the model's folder. `MODEL.onnx.data` and
        `MODEL.onnx_data` are found without being named.
    dim : int, optional
        The length of a feature; needed where the network leaves its input's shape open.
    threads : int, default 1
        Threads within an operator. Another number may change the last bits.
    together : bool, default False
        As for `Backbone`.

    Raises
    ------
    BackboneError
        If the file cannot be opened, or a parameter does not fit the network.
    MissingExtraError
        If ONNX Runtime is not installed (`expunge[onnx]`).

    Notes
    -----
    The fingerprint covers the bytes of the model file and of its external data, the preprocessing,
    the output and the pooling. What is hashed is what is run: the model is loaded from the very
    bytes that were hashed, and external data that were not hashed are not found.

    Examples
    --------
    Here the network is a small head; any model with one input will do:

    >>> import tempfile
    >>> import expunge
    >>> from expunge.backbones import OnnxBackbone
    >>> from expunge.export import save_onnx
    >>> spec = expunge.Spec(dim=2, outputs=3, intercept=False)
    >>> samples, targets = [[1.0, 0.0], [0.0, 1.0]], [[2.0, 4.0, 6.0], [0.0, 2.0, 4.0]]
    >>> head = expunge.solve(expunge.Statistics.of(spec, samples, targets))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_onnx(head, f"{folder}/model.onnx")
    ...     backbone = OnnxBackbone(f"{folder}/model.onnx")
    >>> backbone.dim
    3
    >>> backbone.features(samples).tolist()
    [[1.0, 2.0, 3.0], [0.0, 1.0, 2.0]]
    """

    kind: ClassVar[str] = "onnx"
    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime", "pillow")

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        preprocessing: ImagePreprocessing | None = None,
        output: str | None = None,
        pooling: str = "none",
        external: Sequence[str] = (),
        dim: int | None = None,
        threads: int = 1,
        together: bool = False,
    ) -> None:
        if pooling not in _POOLINGS:
            raise BackboneError(f"pooling={pooling!r} must be one of {', '.join(_POOLINGS)}")
        self._path = Path(model).absolute()
        self._preprocessing = preprocessing
        self._pooling = pooling
        self._threads = positive("threads", threads)
        self._external = _external_files(self._path, external)
        files = {
            name: _bytes(self._path.parent / name) for name in (self._path.name, *self._external)
        }
        self._session = self._opened(files)
        self._input = self._only_input()
        self._output = self._chosen_output(output)
        fingerprint = fingerprint_of(
            self.kind, weights=self._weights(files), settings=self._settings()
        )
        super().__init__(
            fingerprint=fingerprint, dim=self._tried() if dim is None else dim, together=together
        )

    def _weights(self, files: dict[str, bytes]) -> dict[str, str]:
        """Digests; the model's own file may have any name, the others are named in it."""
        return {
            "" if name == self._path.name else name: hashlib.sha256(data).hexdigest()
            for name, data in files.items()
        }

    def _settings(self) -> dict[str, Setting]:
        images = {} if self._preprocessing is None else self._preprocessing.settings
        chosen: dict[str, Setting] = {
            "output": self._output,
            "pooling": self._pooling,
            "dtype": "float32",
        }
        return chosen | {f"image_{name}": value for name, value in images.items()}

    @property
    def text(self) -> str:
        """`onnx:MODEL?output=...`, with the absolute path of the model."""
        options = {} if self._preprocessing is None else self._preprocessing.options
        options |= {"output": self._output, "pooling": self._pooling, "threads": str(self._threads)}
        options |= {"together": "yes" if self._together else "no"}
        options |= {"external": joined(self._external)} if self._external else {}
        options |= {"dim": str(self.dim)} if None in self._shape() else {}
        return written(self.kind, os.fspath(self._path), options, _DEFAULTS)

    def _opened(self, files: dict[str, bytes]) -> Any:
        runtime = needed("onnxruntime", _EXTRA)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
        options.use_deterministic_compute = True
        options.log_severity_level = 4  # errors are raised; only the command line prints
        # A folder that cannot be: else the runtime would look for external data in the current
        # folder, whatever lies there.
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(self._path / "nowhere")
        )
        if self._external:
            contents = [files[name] for name in self._external]
            options.add_external_initializers_from_files_in_memory(
                list(self._external), contents, [len(data) for data in contents]
            )
        try:
            return runtime.InferenceSession(
                files[self._path.name], options, providers=["CPUExecutionProvider"]
            )
        except Exception as problem:  # the runtime's errors have no base of their own
            raise BackboneError(
                f"{self._path} cannot be opened by ONNX Runtime: {problem}. If weights lie in "
                "other files, name them in external="
            ) from problem

    def _only_input(self) -> Any:
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _TYPES or not inputs[0].shape:
            listing = ", ".join(f"{node.name} ({node.type})" for node in inputs)
            raise BackboneError(
                f"{self._path} must have one input of type {', '.join(_TYPES)}, but has {listing}; "
                "wrap it in a CallableBackbone"
            )
        return inputs[0]

    def _chosen_output(self, output: str | None) -> str:
        names = [node.name for node in self._session.get_outputs()]
        if output is None and len(names) > 1:
            raise BackboneError(
                f"{self._path} has the outputs {', '.join(names)}; choose one with output="
            )
        if output is not None and output not in names:
            raise BackboneError(f"{self._path} has no output {output!r}; it has {', '.join(names)}")
        return names[0] if output is None else output

    def _shape(self) -> tuple[int | None, ...]:
        """Of one sample; None for a length that the model leaves open."""
        if self._preprocessing is not None:
            return self._preprocessing.shape
        return tuple(
            length if isinstance(length, int) else None for length in self._input.shape[1:]
        )

    def _tried(self) -> int:
        """The length of a feature, found by running zeros."""
        shape = self._shape()
        if None in shape:
            raise BackboneError(
                f"the input of {self._path} has the open shape {self._input.shape}, so give the "
                "length of a feature as dim="
            )
        zeros = np.zeros([length or 0 for length in shape], _TYPES[self._input.type])
        return int(self._rows([zeros], "a first run with zeros").shape[1])

    def _array(self, sample: object, position: int) -> NDArray[Any]:
        if self._preprocessing is not None:
            return self._preprocessing(sample, position, extra=_EXTRA)
        array = np.asarray(sample)
        expected = self._shape()
        fits = len(array.shape) == len(expected) and all(
            b is None or a == b for a, b in zip(array.shape, expected, strict=True)
        )
        if array.dtype.kind not in "fiub" or not fits:
            raise BackboneError(
                f"{named(position, sample)} is an array of {array.dtype} and shape {array.shape}; "
                f"the network takes numbers of shape {expected}. For images, give a preprocessing"
            )
        return array

    def _run(self, samples: list[Any], first: int) -> NDArray[Any]:
        arrays = [
            self._array(sample, position).astype(_TYPES[self._input.type])
            for position, sample in enumerate(samples, first)
        ]
        if len({array.shape for array in arrays}) > 1:
            raise BackboneError(
                f"{named(first, samples[0])} and those after it differ in shape; leave "
                "together=False"
            )
        return self._rows(arrays, named(first, samples[0]))

    def _rows(self, arrays: list[NDArray[Any]], which: str) -> NDArray[Any]:
        """Features of arrays of one shape.

        A model that was exported for a fixed number of samples gets that number.
        """
        fixed = self._input.shape[0] if isinstance(self._input.shape[0], int) else len(arrays)
        parts = []
        for start in range(0, len(arrays), fixed):
            part = arrays[start : start + fixed]
            full = np.stack(part + [part[-1]] * (fixed - len(part)))
            parts.append(self._pooled(self._through(full, which), which)[: len(part)])
        return np.concatenate(parts)

    def _through(self, batch: NDArray[Any], which: str) -> NDArray[Any]:
        try:
            (output,) = self._session.run([self._output], {self._input.name: batch})
        except Exception as problem:  # as above
            raise BackboneError(
                f"{which}: {self._path} cannot be run on an input of shape {batch.shape}: {problem}"
            ) from problem
        if not isinstance(output, np.ndarray) or output.shape[:1] != batch.shape[:1]:
            raise BackboneError(
                f"{which}: the output {self._output!r} of {self._path} has no row for each "
                "sample; choose another output"
            )
        return output

    def _pooled(self, output: NDArray[Any], which: str) -> NDArray[Any]:
        if self._pooling == "none" and output.ndim == 2:
            return output
        if self._pooling == "cls" and output.ndim == 3:
            return output[:, 0]
        if self._pooling == "mean" and output.ndim in (3, 4):
            return np.asarray(output.mean(axis=1 if output.ndim == 3 else (2, 3)))
        raise BackboneError(
            f"{which}: the output {self._output!r} of {self._path} has shape {output.shape}, "
            f"which pooling={self._pooling!r} "
            "does not fit: 'none' for 2 axes, 'cls' or 'mean' for 3, 'mean' for 4"
        )


def _external_files(model: Path, named_ones: Sequence[str]) -> tuple[str, ...]:
    usual = [model.name + ending for ending in _USUAL_EXTERNAL]
    return tuple(
        sorted({*named_ones, *(name for name in usual if (model.parent / name).is_file())})
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise BackboneError(
            f"the model file {path} cannot be read: {problem.strerror}; check the path"
        ) from problem
