"""TimmBackbone: image networks of timm, with weights from a local file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from expunge.backbones._torch import steady
from expunge.backbones.base import Backbone, fingerprint_of, named, needed, positive, written
from expunge.backbones.images import ImagePreprocessing
from expunge.backbones.model_files import CONFIG, weight_files
from expunge.crypto import canonical
from expunge.errors import BackboneError

_EXTRA = "timm"


class TimmBackbone(Backbone):
    """An image network of timm, with weights from a local file.

    A sample is an image: a path, a Pillow image or a uint8 array.

    Parameters
    ----------
    source : str or path-like
        timm's name of an architecture, with `weights`; or a folder as the Hugging Face hub has them
        for timm, with config.json and weights.
    weights : path, optional
        A checkpoint: .safetensors, or what torch.save wrote. By default that of the folder.
    pooling : str, optional
        timm's global_pool, such as "avg" or "token"; by default the architecture's own.
    threads : int, default 1
        Threads of torch. Another number may change the last bits.
    together : bool, default False
        As for `Backbone`.

    Raises
    ------
    BackboneError
        If timm does not know the architecture, the weights are not of it, or there are none.
    MissingExtraError
        If torch or timm is not installed (`expunge[timm]`).

    Notes
    -----
    The classifier is left off, so a feature is what timm pools. The fingerprint covers the tensors
    as they are in the network, sorted by name, the architecture with its arguments, the pooling,
    and the preprocessing that timm's data config asks for. Images are prepared by
    `ImagePreprocessing`, which gives the same arrays as timm's own evaluation transform.

    Examples
    --------
    Options of a description are those of the class; unknown ones are refused before anything is
    loaded:

    >>> from expunge.backbones import backbone_from
    >>> backbone_from("timm:resnet18?crop=center")
    Traceback (most recent call last):
        ...
    expunge.errors.BackboneError: ... has unknown options crop; known are pooling, threads, ...

    With a checkpoint, and with torch and timm, which these examples do without:

    >>> backbone = backbone_from("timm:resnet18?weights=resnet18.safetensors")  # doctest: +SKIP
    >>> backbone.dim  # doctest: +SKIP
    512
    """

    kind: ClassVar[str] = "timm"
    libraries: ClassVar[tuple[str, ...]] = ("timm", "torch", "pillow")

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        weights: str | os.PathLike[str] | None = None,
        pooling: str | None = None,
        threads: int = 1,
        together: bool = False,
    ) -> None:
        # A folder is described by its whole path, an architecture by its name.
        self._source = os.path.abspath(source) if Path(source).is_dir() else os.fspath(source)
        self._given_weights = None if weights is None else Path(weights).absolute()
        self._pooling = pooling
        self._threads = positive("threads", threads)
        self._torch, timm = needed("torch", _EXTRA), needed("timm", _EXTRA)
        architecture, arguments, config, file = _found(self._source, self._given_weights)
        arguments |= {} if pooling is None else {"global_pool": pooling}
        try:
            model = timm.create_model(
                architecture, pretrained=False, **(arguments | {"num_classes": 0})
            )
        except Exception as problem:  # timm raises what its many architectures raise
            raise BackboneError(
                f"timm cannot make {architecture!r} with {arguments}: {type(problem).__name__}: "
                f"{problem}; see timm.list_models()"
            ) from problem
        self._fill(model, file)
        self._model = model.eval().requires_grad_(False)
        data = needed("timm.data", _EXTRA).resolve_data_config(
            pretrained_cfg=dict(model.pretrained_cfg) | config
        )
        self._preprocessing = preprocessing_of(data)
        settings = {f"image_{name}": value for name, value in self._preprocessing.settings.items()}
        settings |= {
            "architecture": architecture,
            "arguments": json.dumps(arguments, sort_keys=True),
            "dtype": "float32",
        }
        tensors = {name: _digest(tensor) for name, tensor in sorted(model.state_dict().items())}
        fingerprint = fingerprint_of(self.kind, weights=tensors, settings=settings)
        tried = self._run([np.zeros((*self._preprocessing.size, 3), np.uint8)], 0)
        super().__init__(fingerprint=fingerprint, dim=tried.shape[1], together=together)

    @property
    def text(self) -> str:
        """`timm:ARCHITECTURE?weights=...` or `timm:FOLDER`, with options that are not defaults."""
        options = {"threads": str(self._threads), "together": "yes" if self._together else "no"}
        options |= (
            {} if self._given_weights is None else {"weights": os.fspath(self._given_weights)}
        )
        options |= {} if self._pooling is None else {"pooling": self._pooling}
        return written(self.kind, self._source, options, {"threads": "1", "together": "no"})

    def _fill(self, model: Any, file: Path) -> None:
        """Put the weights of the file in place; every tensor must be there, and no others but the
        classifier's.
        """
        tensors = self._tensors(file)
        own = model.state_dict()
        classifier = model.pretrained_cfg.get("classifier") or ()
        prefixes = tuple(
            f"{name}." for name in ([classifier] if isinstance(classifier, str) else classifier)
        )
        strange = sorted(
            name for name in tensors if name not in own and not name.startswith(prefixes)
        )
        wrong = sorted(
            name for name in own if name not in tensors or tensors[name].shape != own[name].shape
        )
        if strange or wrong:
            raise BackboneError(
                f"{file} is not of this architecture; missing or of another shape: {wrong[:5]}, "
                f"unknown: {strange[:5]}. Name the architecture and pooling that it was saved with"
            )
        model.load_state_dict({name: tensors[name] for name in own}, strict=True)

    def _tensors(self, file: Path) -> dict[str, Any]:
        try:
            if file.suffix == ".safetensors":
                return dict(needed("safetensors.torch", _EXTRA).load_file(file))
            state = self._torch.load(file, map_location="cpu", weights_only=True)
        except Exception as problem:  # damaged files fail in many ways
            raise BackboneError(
                f"the weights {file} cannot be read ({type(problem).__name__}: {problem}); give "
                ".safetensors or a torch.save file"
            ) from problem
        for wrapping in ("state_dict", "model"):
            if isinstance(state, Mapping) and isinstance(state.get(wrapping), Mapping):
                state = state[wrapping]
        if not isinstance(state, Mapping) or not all(
            isinstance(tensor, self._torch.Tensor) for tensor in state.values()
        ):
            raise BackboneError(
                f"the weights {file} are not a dictionary of tensors; save model.state_dict()"
            )
        return dict(state)

    def _run(self, samples: list[Any], first: int) -> NDArray[Any]:
        arrays = np.stack(
            [
                self._preprocessing(sample, position, extra=_EXTRA)
                for position, sample in enumerate(samples, first)
            ]
        )
        try:
            with steady(self._torch, self._threads):
                output = self._model(self._torch.from_numpy(arrays)).to(self._torch.float32).numpy()
        except (RuntimeError, ValueError, TypeError, AssertionError) as problem:
            raise BackboneError(
                f"{named(first, samples[0])}: {self._source} cannot take it: {problem}"
            ) from problem
        if output.ndim != 2:
            raise BackboneError(
                f"{self._source} gives an array of shape {output.shape}; choose a pooling, such "
                "as pooling=avg"
            )
        return output  # type: ignore[no-any-return]


def preprocessing_of(config: Mapping[str, Any]) -> ImagePreprocessing:
    """The preprocessing that timm's data config asks for at evaluation."""
    channels, height, width = config["input_size"]
    mode = config.get("crop_mode") or "center"
    if mode not in ("center", "squash") or channels not in (1, 3) or height != width:
        raise BackboneError(
            f"timm's data config asks for crop_mode={mode!r} and "
            f"input_size={tuple(config['input_size'])}, which this adapter cannot do: it does "
            "'center' and 'squash' on square images of 1 or 3 channels. Use a CallableBackbone"
        )
    return ImagePreprocessing(
        size=(height, width),
        resize="shortest" if mode == "center" else "stretch",
        resize_to=math.floor(height / (config.get("crop_pct") or 1.0)),
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        channels="RGB" if channels == 3 else "L",
    )


def _found(source: str, weights: Path | None) -> tuple[str, dict[str, Any], dict[str, Any], Path]:
    """Architecture, its arguments, its data config and the file of its weights."""
    folder = Path(source)
    if not folder.is_dir():
        if (
            ":" in source or "/" in source
        ):  # timm would take hf-hub:OWNER/NAME for an order to download
            raise BackboneError(
                f"{source!r} is neither a folder nor the name of an architecture; fetch the "
                "folder first"
            )
        if weights is None:
            raise BackboneError(
                f"{source!r} is no folder, and as an architecture it needs weights=FILE: nothing "
                "is downloaded here, and random weights are no backbone"
            )
        return source, {}, {}, weights
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        description = (
            str(config["architecture"]),
            dict(config.get("model_args") or {}),
            dict(config.get("pretrained_cfg") or {}),
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BackboneError(
            f"{folder / CONFIG} is missing or not timm's ({problem}); fetch the folder again"
        ) from problem
    return *description, folder / weight_files(folder)[0] if weights is None else weights


def _digest(tensor: Any) -> str:
    """SHA-256 over type, shape and bytes of a tensor."""
    array = np.ascontiguousarray(tensor.numpy())
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    head = canonical.encode({"dtype": array.dtype.name, "shape": list(tensor.shape)})
    return hashlib.sha256(head + b"\n" + little.tobytes()).hexdigest()
