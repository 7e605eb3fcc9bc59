"""The least time that a pass can take: needed bytes and needed products.

Bytes: every input element that the result depends on is read once, every output element
is written once. Along the contiguous axis memory moves in sectors of 32 bytes, so what
is skipped inside a sector is not saved. A stride wider than the kernel leaves positions
of y that no tap reaches: forward still writes them, the gradients need not read them.

Products: one for each pair of an input position and a tap that lands inside y.

A pass of float32 may use any method that is good enough for its error class, so the
rate of a class is that of the fastest known method: one product at the fastest of the
TF32 and 16-bit rates for DEFAULT, and for HIGH and HIGHEST either float32 multiply-adds
or three such products.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from benchmarks.shapes import Layer

SECTOR = 32

# Passes and what they are made of: (bytes, products). "x" and "dy" are what the taps
# reach; "y" is all of y, or all of dy, which a bias gradient needs. A step reads x and
# w twice, since the loss lies between its forward and its backward pass, and dy once.
_PARTS: dict[str, tuple[tuple[str, ...], int]] = {
    "fwd": (("x", "w", "y"), 1),
    "fwdb": (("x", "w", "b", "y"), 1),
    "dx": (("dy", "w", "all_x"), 1),
    "dw": (("x", "dy", "w"), 1),
    "dwb": (("x", "y", "w", "b"), 1),
    "step": (("x", "x", "w", "w", "b", "y", "y", "all_x", "w", "b"), 3),
}
PASSES = tuple(_PARTS)


@dataclasses.dataclass(frozen=True)
class Floor:
    """What a pass cannot do without.

    Attributes:
        bytes: through device memory.
        flops: multiplications and additions.
        memory_ms: bytes over the measured copy rate.
        compute_ms: flops over the measured matrix product rate of the class.
    """

    bytes: int
    flops: int
    memory_ms: float | None
    compute_ms: float | None

    @property
    def ms(self) -> float | None:
        """The larger of the two times."""
        times = [t for t in (self.memory_ms, self.compute_ms) if t is not None]
        return max(times) if times else None


def axis_reach(
    size: int, out: int, kernel: int, stride: int, dilation: int, lo: int
) -> tuple[list[int], list[int], int]:
    """Which positions of one axis meet.

    Returns:
        Input positions that reach y, positions of y that are reached, and the number of
        (input position, tap) pairs.
    """
    used, hit, pairs = [], set(), 0
    for i in range(size):
        landed = [
            o for k in range(kernel) if 0 <= (o := stride * i + dilation * k - lo) < out
        ]
        if landed:
            used.append(i)
        hit.update(landed)
        pairs += len(landed)
    return used, sorted(hit), pairs


def _image_bytes(
    layer: Layer, channels: int, width: int, rows: list[int], cols: list[int]
) -> int:
    """Bytes of the sectors that hold these rows and columns of an image."""
    planes, unit = layer.n * channels, layer.itemsize
    if layer.layout == "NHWC":
        planes, unit = layer.n, channels * layer.itemsize
    sectors: set[int] = set()
    for c in cols:
        sectors.update(range(c * unit // SECTOR, ((c + 1) * unit - 1) // SECTOR + 1))
    return planes * len(rows) * min(len(sectors) * SECTOR, width * unit)


def needed(layer: Layer, pass_name: str) -> tuple[int, int]:
    """Bytes and floating-point operations that a pass needs."""
    axes = [
        axis_reach(
            layer.size[a],
            layer.out_size[a],
            layer.kernel[a],
            layer.stride[a],
            layer.dilation[a],
            layer.crop[a][0],
        )
        for a in (0, 1)
    ]
    item = layer.itemsize
    sizes = {
        "x": _image_bytes(layer, layer.cin, layer.size[1], axes[0][0], axes[1][0]),
        "dy": _image_bytes(
            layer, layer.cout, layer.out_size[1], axes[0][1], axes[1][1]
        ),
        "all_x": math.prod(layer.x_shape) * item,
        "y": math.prod(layer.y_shape) * item,
        "w": math.prod(layer.w_shape) * item,
        "b": layer.cout * item,
    }
    parts, products = _PARTS[pass_name]
    channels = layer.cin * (layer.cout // layer.groups)
    flops = 2 * layer.n * channels * axes[0][2] * axes[1][2]
    return sum(sizes[p] for p in parts), products * flops


def rate(
    dtype: str, precision: str, tflops: Mapping[str, float | None]
) -> float | None:
    """TFLOP/s that a dtype and an error class can reach with the best known method."""
    if dtype != "fp32":
        return tflops.get(dtype) or tflops.get("fp32")
    one = [r for k in ("tf32", "fp16", "bf16") if (r := tflops.get(k))]
    plain = tflops.get("fp32")
    if precision == "default":
        return max([*one, *([plain] if plain else [])], default=None)
    products = [r / 3 for r in one]
    return max([*products, *([plain] if plain else [])], default=None)


def floor(
    layer: Layer,
    pass_name: str,
    precision: str,
    copy_tb_s: float | None,
    tflops: Mapping[str, float | None],
) -> Floor:
    """The floor of one pass from ceilings that were measured in the same run.

    Args:
        layer: the problem.
        pass_name: one of `PASSES`.
        precision: "default", "high" or "highest"; matters for fp32 only.
        copy_tb_s: TB/s of a large copy, bytes read and bytes written both counted.
        tflops: TFLOP/s of a large matrix product by kind.
    """
    count, flops = needed(layer, pass_name)
    speed = rate(layer.dtype, precision, tflops)
    return Floor(
        bytes=count,
        flops=flops,
        memory_ms=count / copy_tb_s / 1e9 if copy_tb_s else None,
        compute_ms=flops / speed / 1e9 if speed else None,
    )
