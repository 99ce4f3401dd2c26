"""CallableBackbone: any Python function, with a name and a version that its author answers for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from expunge.backbones.base import Backbone, DType, named, positive
from expunge.backbones.description import joined, written
from expunge.backbones.fingerprint import digest_of_file, fingerprint_of
from expunge.errors import BackboneError, ExpungeError

Function = Callable[[list[Any]], Any]


class CallableBackbone(Backbone):
    """`function(list of samples)` gives an array (number of samples, dim); a sample is whatever the function takes.

    The fingerprint covers name, version, dim, dtype and the bytes of the `weights` files, in their order. It cannot cover the
    function's code: whoever changes what the function computes must change `version`. `check_backbone` tries out whether the
    function is deterministic.
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
            raise BackboneError(f"{function!r} cannot be called; give a function of a list of samples")
        for what, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or not value:
                raise BackboneError(
                    f"{what}={value!r} must be a text that is not empty: it stands for the code in the fingerprint"
                )
        if isinstance(weights, (str, os.PathLike)):
            raise BackboneError("weights must be a list of files, even for one file")
        self._function = function
        self._name, self._version = name, version
        self._weights = tuple(os.path.abspath(file) for file in weights)
        fingerprint = fingerprint_of(
            self.kind,
            weights={str(place): digest_of_file(file) for place, file in enumerate(self._weights)},
            settings={"name": name, "version": version, "dim": positive("dim", dim), "dtype": dtype},
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
        return written(self.kind, f"{module}:{function}", options, {"dtype": "float32", "together": "no"})

    def _run(self, samples: list[Any], first: int) -> NDArray[Any]:
        try:
            output: NDArray[Any] = self._function(samples)
        except ExpungeError:
            raise
        except Exception as problem:  # a stranger's function could not take the sample, and may quote it
            raise BackboneError(
                f"{named(first, samples[0])}: the function {self._name!r} failed with {type(problem).__name__}"
            ) from problem
        return output
