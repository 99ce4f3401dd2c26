"""One caller at a time: a solver's sums, caches and scratch memory change together."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from expunge.errors import InterruptedChangeError

Method = TypeVar("Method", bound=Callable[..., Any])


def exclusive(method: Method) -> Method:
    """A solver's method, under its lock; refused once a change was interrupted."""

    @wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            if self._torn:
                raise InterruptedChangeError(
                    "this solver was interrupted in the middle of a change, and its sums can no longer be trusted; make a new "
                    "one from statistics or samples that you kept"
                )
            return method(self, *args, **kwargs)

    return cast("Method", guarded)
