"""The reference of the test suite: float64 numpy, written from the definition.

Per spatial axis with stride ``s``, dilation ``d`` and a signed crop ``(lo, hi)``::

    y[s * i + d * k - lo] += x[i] * w[k]        0 <= s * i + d * k - lo < out
    out = (in - 1) * s + d * (k_size - 1) + 1 - lo - hi

Nothing here comes from the package under test, from XLA or from torch, and the
gradients are written from the same line rather than derived from it: ``dx[i]``
gathers what ``x[i]`` was scattered to, ``dw[k]`` sums the products that ``w[k]``
took part in.
"""

import dataclasses
import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

Pair = tuple[int, int]
Crop = tuple[Pair, Pair]

# Unit roundoff of storing a value, by dtype name.
_STORE = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
# Smallest positive value, below which rounding is absolute.
_TINY = {
    "float64": 2.0**-1074,
    "float32": 2.0**-126,  # subnormals may be flushed
    "float16": 2.0**-24,
    "bfloat16": 2.0**-126,
}
# Inf and nan are inputs of some cases; which flags they raise differs between CPUs.
_quiet = np.errstate(all="ignore")
# What one product may lose in float32 beside the rounding of float32 itself, as
# (relative to the norm, relative to |x| * |w| elementwise).
_PRODUCT = {
    "highest": (0.0, 0.0),
    "high": (1e-5, 2.0**-16),
    "default": (1e-3, 2.0**-9),
}


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Bounds of the error against the oracle.

    Attributes:
      norm: Largest ``||a - b|| / ||b||``.
      store: Unit roundoff that the result was stored with, relative to ``|b|``.
      accumulate: Largest error relative to the same sum over absolute values.
      tiny: Absolute floor.
    """

    norm: float
    store: float
    accumulate: float
    tiny: float


def tolerance(dtype, reduction_length: int, precision: str = "highest") -> Tolerance:
    """The one place where tolerances come from.

    Args:
      dtype: Dtype of operands and result.
      reduction_length: Number of products in the longest sum.
      precision: Class of a float32 product: "highest", "high" or "default"
        (TF32, on the accelerators that have it).
    """
    name = np.dtype(dtype).name
    store = _STORE[name]
    unit = _STORE["float64" if name == "float64" else "float32"]
    growth = math.sqrt(max(reduction_length, 1))
    norm = 2 * store + 4 * unit * growth
    accumulate = (8 + 2 * growth) * unit
    if name == "float32":
        product_norm, product_accumulate = _PRODUCT[precision]
        # The promise is 1e-5 however long the sum.
        norm = min(norm, 1e-5) + product_norm
        accumulate += product_accumulate
    elif name == "float64":
        norm = min(norm, 1e-9)
    return Tolerance(norm, 2 * store, accumulate, 2 * _TINY[name])


def as_float64(array) -> np.ndarray:
    """Any array (jax, torch, numpy, bfloat16 too) as float64 numpy."""
    if hasattr(array, "detach"):
        array = array.detach().double().numpy()
    return np.asarray(array).astype(np.float64)


def pair(value) -> Pair:
    """``3`` or ``(3, 4)`` as a pair of ints."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def torch_crop(padding, output_padding=0) -> Crop:
    """The crop that torch's ``padding`` and ``output_padding`` mean."""
    (ph, pw), (oh, ow) = pair(padding), pair(output_padding)
    return (ph, ph - oh), (pw, pw - ow)


def full_extent(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Length of the uncropped result along one axis."""
    return (size - 1) * stride + dilation * (kernel - 1) + 1


def out_extent(size: int, kernel: int, stride: int, dilation: int, crop: Pair) -> int:
    """Length of the cropped result along one axis."""
    return full_extent(size, kernel, stride, dilation) - crop[0] - crop[1]


def _crop(full: np.ndarray, crop: Crop) -> np.ndarray:
    """Drop (positive) or add (negative, as zeros) positions at both ends."""
    grow = [(max(-lo, 0), max(-hi, 0)) for lo, hi in crop]
    full = np.pad(full, [(0, 0), (0, 0), *grow])
    (h0, h1), (w0, w1) = ((max(lo, 0), max(hi, 0)) for lo, hi in crop)
    return full[:, :, h0 : full.shape[2] - h1, w0 : full.shape[3] - w1]


def _taps(
    x_spatial: Sequence[int], kernel: Sequence[int], stride: Pair, dilation: Pair
):
    """Each tap with the slices of the full result that it is scattered to."""
    for kh in range(kernel[0]):
        for kw in range(kernel[1]):
            first = dilation[0] * kh, dilation[1] * kw
            rows, columns = (
                slice(f, f + (n - 1) * s + 1, s)
                for f, n, s in zip(first, x_spatial, stride, strict=True)
            )
            yield kh, kw, rows, columns


def _grouped(array: np.ndarray, groups: int) -> np.ndarray:
    """(N, C, H, W) as (N, G, C/G, H * W)."""
    n, c, h, w = array.shape
    return np.ascontiguousarray(array).reshape(n, groups, c // groups, h * w)


@_quiet
def forward(
    x,
    weight,
    bias=None,
    *,
    stride: Pair = (1, 1),
    crop: Crop = ((0, 0), (0, 0)),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    """y of x (N, Cin, H, W) and weight (Cin, Cout // groups, kH, kW)."""
    x, weight = as_float64(x), as_float64(weight)
    n, cin, h, w = x.shape
    cout = weight.shape[1] * groups
    kernel = weight.shape[2:]
    extents = [
        full_extent(*a) for a in zip((h, w), kernel, stride, dilation, strict=True)
    ]
    full = np.zeros((n, cout, *extents))
    xg = _grouped(x, groups)
    wg = weight.reshape(groups, cin // groups, cout // groups, *kernel)
    for kh, kw, rows, columns in _taps((h, w), kernel, stride, dilation):
        tap = wg[..., kh, kw].transpose(0, 2, 1)
        full[:, :, rows, columns] += np.matmul(tap, xg).reshape(n, cout, h, w)
    y = _crop(full, crop)
    if bias is not None:
        y = y + as_float64(bias)[:, None, None]
    return y


def _uncrop(dy: np.ndarray, extents: Sequence[int], crop: Crop) -> np.ndarray:
    """dy in the frame of the full result; what was cropped away has no cotangent."""
    full = _crop(dy, tuple((-lo, -hi) for lo, hi in crop))
    assert full.shape[2:] == tuple(extents), "the cotangent does not fit the crop"
    return full


@_quiet
def grad_input(
    dy,
    weight,
    x_spatial: Sequence[int],
    *,
    stride: Pair = (1, 1),
    crop: Crop = ((0, 0), (0, 0)),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    """dx[i] = sum over k of dy[s * i + d * k - lo] * w[k]."""
    dy, weight = as_float64(dy), as_float64(weight)
    n, cout = dy.shape[:2]
    cin, kernel = weight.shape[0], weight.shape[2:]
    extents = [
        full_extent(*a) for a in zip(x_spatial, kernel, stride, dilation, strict=True)
    ]
    full = _uncrop(dy, extents, crop)
    wg = weight.reshape(groups, cin // groups, cout // groups, *kernel)
    dx = np.zeros((n, cin, *x_spatial))
    for kh, kw, rows, columns in _taps(x_spatial, kernel, stride, dilation):
        seen = _grouped(full[:, :, rows, columns], groups)
        dx += np.matmul(wg[..., kh, kw], seen).reshape(dx.shape)
    return dx


@_quiet
def grad_weight(
    x,
    dy,
    kernel: Sequence[int],
    *,
    stride: Pair = (1, 1),
    crop: Crop = ((0, 0), (0, 0)),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    """dw[k] = sum over n and i of x[i] * dy[s * i + d * k - lo]."""
    x, dy = as_float64(x), as_float64(dy)
    cin, cout = x.shape[1], dy.shape[1]
    x_spatial = x.shape[2:]
    extents = [
        full_extent(*a) for a in zip(x_spatial, kernel, stride, dilation, strict=True)
    ]
    full = _uncrop(dy, extents, crop)
    xg = _grouped(x, groups)
    dw = np.zeros((cin, cout // groups, *kernel))
    for kh, kw, rows, columns in _taps(x_spatial, kernel, stride, dilation):
        seen = _grouped(full[:, :, rows, columns], groups)
        products = np.matmul(xg, seen.transpose(0, 1, 3, 2)).sum(axis=0)
        dw[:, :, kh, kw] = products.reshape(cin, cout // groups)
    return dw


def grad_bias(dy) -> np.ndarray:
    """db[o] = sum of the cotangent of channel o."""
    return as_float64(dy).sum(axis=(0, 2, 3))


@dataclasses.dataclass(frozen=True)
class Expected:
    """A result, the same sum over absolute values, and the length of the sum."""

    value: np.ndarray
    scale: np.ndarray
    reduction: int


def expected_passes(x, weight, bias, dy, **geometry) -> dict[str, Expected]:
    """All results of one problem: "y", "dx", "dw" and "db" (without a bias, no "db").

    Args:
      x: (N, Cin, H, W).
      weight: (Cin, Cout // groups, kH, kW).
      bias: (Cout,) or None.
      dy: The cotangent, in the shape of the result.
      **geometry: ``stride``, ``crop``, ``dilation``, ``groups``.
    """
    x, weight, dy = as_float64(x), as_float64(weight), as_float64(dy)
    bias = None if bias is None else as_float64(bias)
    groups = geometry.get("groups", 1)
    taps = math.prod(weight.shape[2:])
    spatial, kernel = x.shape[2:], weight.shape[2:]

    def both(function, *operands, **keywords):
        magnitude = [None if o is None else np.abs(o) for o in operands]
        return (
            function(*operands, **keywords, **geometry),
            function(*magnitude, **keywords, **geometry),
        )

    results = {
        "y": Expected(*both(forward, x, weight, bias), x.shape[1] // groups * taps),
        "dx": Expected(
            *both(grad_input, dy, weight, x_spatial=spatial), weight.shape[1] * taps
        ),
        "dw": Expected(
            *both(grad_weight, x, dy, kernel=kernel),
            x.shape[0] * math.prod(spatial),
        ),
    }
    if bias is not None:
        length = dy.size // max(dy.shape[1], 1)
        results["db"] = Expected(grad_bias(dy), grad_bias(np.abs(dy)), length)
    return results


@_quiet
def assert_close(
    actual,
    expected: Expected,
    dtype,
    *,
    precision: str = "highest",
    what: str = "result",
) -> None:
    """Check the norm and, so that one wrong pixel cannot hide in it, every element."""
    value, scale = expected.value, expected.scale
    assert np.shape(actual) == value.shape, (
        f"{what}: shape {np.shape(actual)}, expected {value.shape}"
    )
    bound = tolerance(dtype, expected.reduction, precision)
    got = as_float64(actual)
    finite = np.isfinite(value)
    np.testing.assert_array_equal(
        np.where(finite, 0.0, got),
        np.where(finite, 0.0, value),
        err_msg=f"{what}: the non-finite results differ",
    )
    assert np.isfinite(got[finite]).all(), f"{what}: not finite where it should be"
    error = np.abs(np.where(finite, got - np.where(finite, value, 0.0), 0.0))
    allowed = (
        bound.store * np.abs(np.where(finite, value, 0.0))
        + bound.accumulate * np.where(np.isfinite(scale), scale, 0.0)
        + bound.tiny
    )
    bad = error > allowed
    if bad.any():
        worst = np.unravel_index(np.argmax(error / allowed), error.shape)
        raise AssertionError(
            f"{what}: {bad.sum()} of {bad.size} elements are off; worst at {worst}: "
            f"got {got[worst]!r}, expected {value[worst]!r}, error "
            f"{error[worst]:.3e}, allowed {allowed[worst]:.3e}"
        )
    # A sum that happens to cancel is measured against what it would be at random.
    typical = np.linalg.norm(scale[finite & np.isfinite(scale)])
    size = max(
        np.linalg.norm(value[finite]),
        typical / math.sqrt(max(expected.reduction, 1)),
    )
    off = np.linalg.norm(error)
    assert off <= bound.norm * size + bound.tiny * math.sqrt(max(error.size, 1)), (
        f"{what}: relative norm of the error {off / max(size, 1e-300):.3e}, "
        f"allowed {bound.norm:.3e}"
    )


def assert_same(
    actual, expected, dtype, reduction: int = 1, *, what: str = "result"
) -> None:
    """Compare with a reference that comes without a scale (torch, a loop, flax).

    Each element is bounded against the root mean square of the reference, in place of
    the sum over absolute values.
    """
    value = as_float64(expected)
    finite = value[np.isfinite(value)]
    level = math.sqrt(float(np.mean(np.square(finite)))) if finite.size else 0.0
    growth = math.sqrt(max(reduction, 1))
    scale = np.abs(value) + 8 * level * growth
    assert_close(actual, Expected(value, scale, reduction), dtype, what=what)


def round_to(array, dtype) -> np.ndarray:
    """float64 rounded once, through float32, to a 16-bit dtype."""
    kind = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[str(np.dtype(dtype))]
    return np.asarray(array, np.float32).astype(kind)


def ulp_distance(a, b) -> np.ndarray:
    """How many representable 16-bit values lie between two arrays, elementwise."""

    def ordered(array):
        bits = np.asarray(array).view(np.int16).astype(np.int32)
        return np.where(bits < 0, -(bits & 0x7FFF), bits)

    return np.abs(ordered(a) - ordered(b))
