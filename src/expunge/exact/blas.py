"""The BLAS and LAPACK calls that Expunge uses, for row-major arrays, through one library.

numpy and scipy each bring an OpenBLAS with a thread pool of its own, and the pools fight over the
cores. The core uses scipy's, and every product that must be exact is made here. A symmetric matrix
is held as its upper triangle in row-major order (which the library sees as a lower triangle in
column-major order); entries below the diagonal are never read.

`require_exact` is the start-up self-test: exactness rests on sums of integer products below 2^53
being error-free, which holds for any plain BLAS in any order of summation, with or without FMA, on
any number of threads, and fails for one that forms sums of entries first (Strassen) or emulates
fp64.

The routines are in extension modules of `scipy.linalg`, which take a few milliseconds to load; the
package around them takes longer than numpy. So a routine is looked up when it is first called, in
its extension module, and `scipy.linalg` is imported only where that module is not as we know it.
Either way it is the same routine of the same library.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from expunge._lazy import Extensions
from expunge.errors import PlatformError

Float = NDArray[np.float64]

EXACT_LIMIT = (
    2.0**53
)  # integers up to here are exact in float64, and so are sums whose absolute products stay below it

FEW_COLUMNS = 4  # of a product: up to here they are multiplied one by one
_LINALG = "scipy.linalg"
_extensions = Extensions(_LINALG)


class _Routines:
    """The names of an extension module, or of the public module that has what it lacks."""

    def __init__(self, extension: str, public: str) -> None:
        self._extension, self._public = extension, public

    def __getattr__(self, name: str) -> Any:
        found = getattr(_extensions.module(self._extension), name, None)
        if found is None:
            found = getattr(import_module(f"{_LINALG}.{self._public}"), name)
        setattr(self, name, found)  # from now on it is an ordinary attribute
        return found


if TYPE_CHECKING:
    from scipy.linalg import blas, lapack

    scipy_blas = blas
    scipy_lapack = lapack
else:
    scipy_blas = _Routines("_fblas", "blas")
    scipy_lapack = _Routines("_flapack", "lapack")
_cython_blas = _Routines("cython_blas", "cython_blas")
_cython_lapack = _Routines("cython_lapack", "cython_lapack")


def load() -> None:
    """Load the library, for those who must find it in this process."""
    _library_function("dgemm", 13)


def typed_routines(library: Any, names: Iterable[str], dtype: np.dtype[Any]) -> list[Any]:
    """Routines of `scipy_blas` or `scipy_lapack` for float32 or float64."""
    prefix = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}[dtype]
    return [getattr(library, f"{prefix}{name}") for name in names]


def multiply(left: Float, right: Float) -> Float:
    """left @ right for row-major arrays."""
    if right.shape[1] == 1 and left.size > 0:  # as in `_add_columns`; scipy takes nothing empty
        return scipy_blas.dgemv(1.0, left.T, right[:, 0], trans=1)[:, None]
    return scipy_blas.dgemm(1.0, right.T, left.T).T


@cache
def _library_function(name: str, arguments: int, module: Any = _cython_blas) -> Callable[..., None]:
    """A BLAS or LAPACK routine by its address in scipy's library.

    Unlike scipy's wrapper such a call lets other threads run.
    """
    capsule = module.__pyx_capi__[name]
    api = ctypes.pythonapi
    signature = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))(
        capsule
    )
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", api)
    )
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(pointer(capsule, signature))


def _scalars(*values: int | float | bytes) -> list[Any]:
    """C objects of the types BLAS expects. They must be kept alive until the call is over."""
    types: dict[type, Any] = {int: ctypes.c_int, float: ctypes.c_double, bytes: ctypes.c_char}
    return [types[type(value)](value) for value in values]


def _require_plain(*arrays: Float) -> None:
    for array in arrays:
        if not array.flags.c_contiguous or array.dtype != np.float64:
            raise TypeError("this product takes contiguous row-major float64 arrays")


def add_gram(rows: Float, total: Float, factor: float = 1.0) -> None:
    """total += factor * rows.T @ rows, in place, upper triangle only; arrays row-major."""
    _require_plain(rows, total)
    scalars = _scalars(b"L", b"N", len(total), len(rows), float(factor), 1.0)
    lower, plain, size, length, alpha, beta = map(ctypes.addressof, scalars)
    source, target = rows.ctypes.data, total.ctypes.data
    dsyrk = _library_function("dsyrk", 10)
    dsyrk(lower, plain, size, length, alpha, source, size, beta, target, size)


def add_product(left: Float, right: Float, total: Float, factor: float = 1.0) -> None:
    """total += factor * left.T @ right, in place; arrays contiguous and row-major."""
    _require_plain(left, right, total)
    if left.size > 0 and right.shape[1] <= FEW_COLUMNS:
        _add_columns(left, right, total, float(factor))
    else:
        _dgemm_into(left, right, right.shape[1], total, (float(factor), 1.0))


def _add_columns(left: Float, right: Float, total: Float, factor: float) -> None:
    """The same, column by column: for few of them dgemm would take several times as long."""
    columns = right.shape[1]
    scalars = _scalars(b"N", left.shape[1], len(left), columns, factor, 1.0)
    plain, rows, length, step, alpha, beta = map(ctypes.addressof, scalars)
    source, other, target = left.ctypes.data, right.ctypes.data, total.ctypes.data
    dgemv = _library_function("dgemv", 11)
    for at in range(0, columns * right.itemsize, right.itemsize):
        sides = (alpha, source, rows, other + at, step, beta, target + at, step)
        dgemv(plain, rows, length, *sides)


def _dgemm_into(
    left: Float, right: Float, stride: int, total: Float, factors: tuple[float, float]
) -> None:
    """total = alpha * left.T @ right + beta * total; rows of `right` are `stride` values apart."""
    scalars = _scalars(b"N", b"T", right.shape[1], left.shape[1], len(left), stride, *factors)
    plain, flip, columns, rows, length, apart, alpha, beta = map(ctypes.addressof, scalars)
    source, other, target = right.ctypes.data, left.ctypes.data, total.ctypes.data
    sides = (alpha, source, apart, other, rows, beta, target, columns)
    _library_function("dgemm", 13)(plain, flip, columns, rows, length, *sides)


def multiply_transposed(left: Float, right: Float) -> Float:
    """left.T @ right for contiguous row-major arrays."""
    result = np.zeros((left.shape[1], right.shape[1]))
    add_product(left, right, result)
    return result


def multiply_panel(left: Float, right: Float) -> Float:
    """left.T @ right for row-major arrays, of which `right` may be some columns of a larger one:
    they are not copied.
    """
    _require_plain(left, right[:1])
    if len(left) != len(right) or right.strides[0] < right.itemsize * right.shape[1]:
        raise TypeError(
            "this product takes as many rows on either side, one after another in memory"
        )
    result = np.zeros((left.shape[1], right.shape[1]))
    _dgemm_into(left, right, right.strides[0] // right.itemsize, result, (1.0, 0.0))
    return result


def symmetric_multiply(upper: Float, right: Float) -> Float:
    """A @ right for the symmetric A whose upper triangle is given; `right` row-major."""
    if right.shape[1] == 1:
        return scipy_blas.dsymv(1.0, upper.T, right[:, 0], lower=1)[:, None]
    _require_plain(upper)
    columns, result = np.asfortranarray(right), np.zeros(right.shape, order="F")
    scalars = _scalars(b"L", b"L", len(upper), right.shape[1], 1.0, 0.0)
    left, lower, size, count, alpha, beta = map(ctypes.addressof, scalars)
    sides = (columns.ctypes.data, size, beta, result.ctypes.data, size)
    dsymm = _library_function("dsymm", 12)
    dsymm(left, lower, size, count, alpha, upper.ctypes.data, size, *sides)
    return np.ascontiguousarray(result)


def packed_multiply(packed: Float, right: Float) -> Float:
    """A @ right for the symmetric A whose packed upper triangle is given, column by column: fast as
    long as these are few, because every column reads all of A.
    """
    result = np.empty(right.shape)
    for index, column in enumerate(right.T):
        result[:, index] = scipy_blas.dspmv(len(right), 1.0, packed, column, lower=1)
    return result


def norm(array: Float) -> float:
    """The Euclidean norm of all entries. numpy's own would wake the other library's threads."""
    return math.sqrt(float(np.square(array).sum()))


def column_norms(array: Float) -> Float:
    """The Euclidean norms of the columns."""
    norms: Float = np.sqrt(np.square(array).sum(axis=0))
    return norms


def smallest_eigenvalue(symmetric: Float) -> float:
    """The smallest eigenvalue of a small symmetric matrix."""
    values, _, _ = scipy_lapack.dsyevd(symmetric, compute_v=0)
    return float(values[0])


def factor_in_place(upper: Float) -> int:
    """Turn the upper triangle of a symmetric matrix into R with R'R = A; returns 0, or the order of
    the first leading minor that is not positive.
    """
    _require_plain(upper)
    scalars = _scalars(b"L", len(upper), 0)
    lower, size, info = map(ctypes.addressof, scalars)
    dpotrf = _library_function("dpotrf", 5, _cython_lapack)
    dpotrf(lower, size, upper.ctypes.data, size, info)
    return int(scalars[-1].value)


def packed_from_upper(upper: Float) -> Float:
    """The upper triangle, row by row, as one vector."""
    packed = np.empty(packed_length(len(upper)))
    _require_plain(upper)
    scalars = _scalars(b"L", len(upper), 0)
    lower, size, info = map(ctypes.addressof, scalars)
    dtrttp = _library_function("dtrttp", 6, _cython_lapack)
    dtrttp(lower, size, upper.ctypes.data, size, packed.ctypes.data, info)
    return packed


def upper_from_packed(size: int, packed: Float) -> Float:
    """The inverse of `packed_from_upper`; entries below the diagonal are arbitrary."""
    upper = np.zeros((size, size))
    _require_plain(packed)
    scalars = _scalars(b"L", size, 0)
    lower, order, info = map(ctypes.addressof, scalars)
    dtpttr = _library_function("dtpttr", 6, _cython_lapack)
    dtpttr(lower, order, packed.ctypes.data, upper.ctypes.data, order, info)
    return upper


def packed_length(size: int) -> int:
    """How many entries an upper triangle has."""
    return size * (size + 1) // 2


@cache
def packed_diagonal(size: int) -> NDArray[np.int64]:
    """Indices of the diagonal entries in a packed upper triangle. Cached: do not modify."""
    index = np.arange(size, dtype=np.int64)
    return index * size - index * (index - 1) // 2


@cache
def require_exact() -> None:
    """Raise PlatformError unless this machine's BLAS multiplies small integers exactly.

    The case is built to fail: every sum of absolute products comes close to 2^53 and ends in
    arbitrary bits, so that a single extra bit anywhere (a sum of two blocks, a rounded
    intermediate) shows. Entries are a constant less a little noise of rank 3, so that the answers
    follow in integers, and soon.
    """
    rows, width, columns = 512, 192, 8
    most, wider = 2**22 - 1, 2**23 - 1
    numbers = np.arange(1, 3 * (rows + width) + 1, dtype=np.int64)
    parts = (numbers * numbers * 2654435761 >> 20) % 5
    tall, flat = parts[: 3 * rows].reshape(rows, 3), parts[3 * rows :].reshape(3, width)
    noise = tall @ flat
    sums = noise.sum(axis=0)
    inner = flat.T @ (tall.T @ tall) @ flat
    expected = rows * most**2 - most * (sums[:, None] + sums) + inner
    matrix = np.subtract(most, noise, dtype=np.float64)
    gram = np.zeros((width, width))
    add_gram(matrix, gram)
    general = multiply_transposed(matrix, matrix)
    change = np.triu(noise[:width]) + np.triu(noise[:width], 1).T
    digits = noise[-width:, :columns]
    answer = (
        width * wider * most
        - wider * digits.sum(axis=0)
        - most * change.sum(axis=1)[:, None]
        + change @ digits
    )
    whole = np.subtract(wider, change, dtype=np.float64)
    right = np.subtract(most, digits, dtype=np.float64)
    ways = (symmetric_multiply, multiply, multiply_transposed)
    products = [way(whole, right) for way in ways]
    products.append(packed_multiply(packed_from_upper(whole), right))
    for way in ways:  # these have routines of their own for single columns
        single = [way(whole, right[:, [index]]) for index in range(columns)]
        products.append(np.concatenate(single, axis=1))
    upper = np.triu_indices(width)
    if not (
        np.array_equal(gram[upper], expected[upper])
        and np.array_equal(general, expected)
        and all(np.array_equal(product, answer) for product in products)
    ):
        raise PlatformError(
            "this machine's BLAS does not multiply small integers exactly in float64, so no exact "
            "statistics can be made here. Install scipy from its ordinary wheel, or switch off "
            "fast-multiplication and fp64-emulation modes."
        )
