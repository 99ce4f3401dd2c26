"""HuggingFaceBackbone: transformers from a local folder, for images (such as DINOv2) and texts
(such as RoBERTa).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from expunge.backbones._torch import steady
from expunge.backbones.base import (
    Backbone,
    Setting,
    digest_of_file,
    fingerprint_of,
    named,
    needed,
    positive,
    unchanged,
    written,
)
from expunge.backbones.images import read_image, read_text
from expunge.backbones.model_files import modality_of, model_files, view
from expunge.errors import BackboneError

_EXTRA = "huggingface"
_POOLINGS = ("cls", "mean", "pooler")
_ENDLESS = 1 << 20  # tokenizers that know no limit say a huge number


class HuggingFaceBackbone(Backbone):
    """A network of transformers, from a local folder: for images or for texts.

    A sample is an image (a path, a Pillow image or a uint8 array) or a text (a str is the text
    itself, a Path a file), as the folder is made for.

    Parameters
    ----------
    folder : path
        A model as the Hugging Face hub has them, with config, weights, and image processor or
        tokenizer. Nothing is downloaded.
    pooling : {"cls", "mean", "pooler"}, optional
        "cls" is the first token, "mean" the mean over all tokens that are not padding, or over all
        positions of a convolutional network, "pooler" the network's own. By default "cls" for
        images and "mean" for texts.
    modality : {"image", "text"}, optional
        Needed where the folder is made for both.
    max_length : int, optional
        Longer texts are truncated to this many tokens; by default the tokenizer's own limit. For
        texts only.
    threads : int, default 1
        Threads of torch. Another number may change the last bits.
    together : bool, default False
        As for `Backbone`.

    Raises
    ------
    BackboneError
        If the folder is incomplete, cannot be loaded, or lacks weights of the network, or if a
        parameter does not fit it.
    MissingExtraError
        If torch or transformers is not installed (`expunge[huggingface]`).

    Notes
    -----
    The fingerprint covers the bytes of config, weights, and image processor or tokenizer, and
    modality, pooling, max_length and dtype. Nothing else in the folder is read, and no code from it
    is run. Images are prepared by the processor's Pillow form, whether torchvision is installed or
    not, as the two resize differently.

    Examples
    --------
    >>> from expunge.backbones import HuggingFaceBackbone
    >>> HuggingFaceBackbone("dinov2-small")
    Traceback (most recent call last):
        ...
    expunge.errors.BackboneError: there is no folder ...dinov2-small. Models are never ...

    With the folder, and with torch and transformers, which these examples do without:

    >>> backbone = HuggingFaceBackbone("dinov2-small", pooling="cls")  # doctest: +SKIP
    >>> backbone.features(["cat.jpg", "dog.jpg"]).shape  # doctest: +SKIP
    (2, 384)
    """

    kind: ClassVar[str] = "hf"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "transformers", "tokenizers", "pillow")

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        pooling: str | None = None,
        modality: str | None = None,
        max_length: int | None = None,
        threads: int = 1,
        together: bool = False,
    ) -> None:
        self._folder = Path(folder).absolute()
        self._modality = modality_of(self._folder, modality)
        self._pooling = pooling or ("cls" if self._modality == "image" else "mean")
        if self._pooling not in _POOLINGS:
            raise BackboneError(f"pooling={pooling!r} must be one of {', '.join(_POOLINGS)}")
        if self._modality == "image" and max_length is not None:
            raise BackboneError("max_length is for texts; leave it out")
        self._threads = positive("threads", threads)
        self._torch = needed("torch", _EXTRA)
        names = model_files(self._folder, self._modality)
        with unchanged([self._folder / name for name in names]):
            weights = {name: digest_of_file(self._folder / name) for name in names}
            self._load(names)
        self._max_length = self._limit(max_length)
        settings: dict[str, Setting] = {
            "modality": self._modality,
            "pooling": self._pooling,
            "dtype": "float32",
        }
        settings |= {"max_length": self._max_length}
        fingerprint = fingerprint_of(self.kind, weights=weights, settings=settings)
        super().__init__(fingerprint=fingerprint, dim=self._tried(), together=together)

    @property
    def text(self) -> str:
        """`hf:FOLDER?modality=...&pooling=...`, with the absolute path of the folder."""
        options = {
            "modality": self._modality,
            "pooling": self._pooling,
            "threads": str(self._threads),
        }
        options |= {"max_length": str(self._max_length)} if self._modality == "text" else {}
        options |= {"together": "yes" if self._together else "no"}
        return written(
            self.kind, os.fspath(self._folder), options, {"threads": "1", "together": "no"}
        )

    def _load(self, names: tuple[str, ...]) -> None:
        transformers = needed("transformers", _EXTRA)
        preparer = (
            transformers.AutoImageProcessor
            if self._modality == "image"
            else transformers.AutoTokenizer
        )
        how = {"backend": "pil"} if self._modality == "image" else {"use_fast": True}
        needed("PIL.Image", _EXTRA)
        try:
            with view(self._folder, names) as folder, _quiet(transformers):
                shared = {"local_files_only": True, "trust_remote_code": False}
                self._prepare = preparer.from_pretrained(str(folder), **shared, **how)
                model, loading_info = transformers.AutoModel.from_pretrained(
                    str(folder), **shared, dtype=self._torch.float32, output_loading_info=True
                )
        # A damaged or foreign folder can fail anywhere in the library, with any error
        except Exception as problem:
            raise BackboneError(
                f"the model in {self._folder} cannot be loaded: {type(problem).__name__}: "
                f"{problem}. Check that the folder is complete, and that this version of "
                "transformers knows the architecture without code of its own"
            ) from problem
        if self._modality == "image" and getattr(self._prepare, "backend", "") != "pil":
            raise BackboneError(
                f"the image processor of {self._folder} has no Pillow form; export the model to "
                "ONNX instead"
            )
        self._refuse_random(loading_info)
        self._model = model.eval().requires_grad_(False)

    def _refuse_random(self, loading_info: dict[str, Any]) -> None:
        """Weights that the files lack are drawn at random by transformers: no two clients would
        have the same.
        """
        missing = [
            str(name)
            for name in loading_info["missing_keys"]
            if self._pooling == "pooler" or not str(name).startswith("pooler.")
        ]
        missing += [str(name) for name in loading_info["mismatched_keys"]]
        if missing:
            raise BackboneError(
                f"the files in {self._folder} lack weights of the network or have them in another "
                "shape, which would be random: "
                f"{', '.join(sorted(missing)[:5])}. Choose another pooling or complete the folder"
            )

    def _limit(self, given: int | None) -> int:
        if self._modality == "image":
            return 0
        if given is not None:
            return positive("max_length", given)
        limit = int(self._prepare.model_max_length)
        if limit > _ENDLESS:
            raise BackboneError(
                f"the tokenizer in {self._folder} knows no longest text; give max_length=, as the "
                "network was trained with"
            )
        return limit

    def _tried(self) -> int:
        """The length of a feature, found by a first run."""
        first = (
            needed("PIL.Image", _EXTRA).new("RGB", (64, 64), (128, 128, 128))
            if self._modality == "image"
            else "a"
        )
        shape = self._run([first], 0).shape
        if len(shape) != 2:
            raise BackboneError(
                f"pooling={self._pooling!r} gives an array of shape {shape} for the model in "
                f"{self._folder}; choose another"
            )
        return int(shape[1])

    def _run(self, samples: list[Any], first: int) -> NDArray[Any]:
        which = named(first, samples[0])
        if self._modality == "image":
            images = [
                read_image(sample, position, extra=_EXTRA)
                for position, sample in enumerate(samples, first)
            ]
            given: dict[str, Any] = {"images": images}
        else:
            texts = [read_text(sample, position) for position, sample in enumerate(samples, first)]
            given = {
                "text": texts,
                "padding": len(texts) > 1,
                "truncation": True,
                "max_length": self._max_length,
            }
            given |= {"padding_side": "right"}  # so that the first token is the text's own
        try:
            inputs = self._prepare(**given, return_tensors="pt")
            if self._modality == "text" and not bool(inputs["attention_mask"].any(dim=1).all()):
                raise BackboneError(
                    f"{which} or one of its batch has no tokens; leave out empty texts"
                )
            with steady(self._torch, self._threads):
                pooled = self._pooled(self._model(**inputs), inputs.get("attention_mask"))
                return pooled.to(self._torch.float32).numpy()  # type: ignore[no-any-return]
        except (RuntimeError, IndexError, ValueError, TypeError, KeyError) as problem:
            if isinstance(problem, BackboneError):
                raise
            raise BackboneError(
                f"{which}: the model in {self._folder} cannot take it: {type(problem).__name__}. "
                "A max_length beyond what the network knows gives such errors; so does a network "
                "that needs several inputs"
            ) from problem

    def _pooled(self, output: Any, mask: Any) -> Any:
        if self._pooling == "pooler":
            pooled = getattr(output, "pooler_output", None)
            if pooled is None:
                raise BackboneError(
                    f"the model in {self._folder} has no pooler; choose pooling=cls or pooling=mean"
                )
            return pooled.flatten(1)
        hidden = output.last_hidden_state
        if hidden.ndim == 4 and self._pooling == "mean":
            return hidden.mean(dim=(2, 3))
        if hidden.ndim != 3:
            raise BackboneError(
                f"the model in {self._folder} has no tokens, so pooling=cls has no meaning; "
                "choose pooling=mean"
            )
        if self._pooling == "cls":
            return hidden[:, 0]
        if mask is None:
            return hidden.mean(dim=1)
        token_mask = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * token_mask).sum(dim=1) / token_mask.sum(dim=1)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No bars and no remarks while loading: only the command line prints, and what matters is
    raised.
    """
    logging = transformers.utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
