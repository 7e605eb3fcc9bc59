"""Which problems are measured: layers of real models, and how they are cut for a CPU.

A suite is a JSON list. Each element is either a layer (an object with the fields of
`Layer`) or the id of a layer of ``shapes/layers.json``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterable
from typing import Any

SHAPES = pathlib.Path(__file__).parent / "shapes"
SUITES = ("seeds", "core", "all")
DTYPES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
LAYOUTS = ("NCHW", "NHWC")

# A cut layer costs a CPU core a few hundredths of a second a pass.
CPU_MACS = 300_000_000

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Layer:
    """One transposed convolution, sizes and all.

    Attributes:
        id: its name in every table; a cut layer keeps it.
        n: batch size.
        cin: channels of x.
        cout: channels of y.
        size: height and width of x.
        kernel: height and width of the kernel.
        stride: per axis.
        dilation: per axis.
        crop: per axis (lo, hi), signed: what is cut from the full result.
        groups: channel groups.
        dtype: "fp16", "bf16", "fp32" or "fp64".
        layout: "NCHW" or "NHWC".
        bias: whether the model has one.
        core: whether the layer belongs to the default suite.
        cut: how it was shrunk for a CPU, or "".
    """

    id: str
    n: int
    cin: int
    cout: int
    size: Pair
    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    crop: tuple[Pair, Pair] = ((0, 0), (0, 0))
    groups: int = 1
    dtype: str = "fp32"
    layout: str = "NCHW"
    bias: bool = False
    core: bool = False
    cut: str = ""

    @property
    def out_size(self) -> Pair:
        """Height and width of y."""
        h, w = (
            (n - 1) * s + d * (k - 1) + 1 - lo - hi
            for n, k, s, d, (lo, hi) in zip(
                self.size,
                self.kernel,
                self.stride,
                self.dilation,
                self.crop,
                strict=True,
            )
        )
        return h, w

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of x and dx in the layer's layout."""
        return self._image(self.cin, self.size)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of y and dy in the layer's layout."""
        return self._image(self.cout, self.out_size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the weight, in PyTorch's order in either layout."""
        return (self.cin, self.cout // self.groups, *self.kernel)

    @property
    def macs(self) -> int:
        """Multiplications of one pass, taps that the crop cuts off included."""
        channels = self.cin * (self.cout // self.groups)
        return self.n * channels * math.prod(self.size) * math.prod(self.kernel)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype]

    def _image(self, channels: int, size: Pair) -> tuple[int, ...]:
        if self.layout == "NCHW":
            return (self.n, channels, *size)
        return (self.n, *size, channels)

    def __str__(self) -> str:
        h, w = self.size
        text = f"n{self.n} {self.cin}>{self.cout} {h}x{w}"
        text += f" k{self.kernel[0]}x{self.kernel[1]}"
        for mark, pair in (("s", self.stride), ("d", self.dilation)):
            if pair != (1, 1):
                text += f" {mark}{pair[0]}" + (
                    "" if pair[0] == pair[1] else f"x{pair[1]}"
                )
        if self.crop != ((0, 0), (0, 0)):
            text += " crop" + ",".join(f"{lo}/{hi}" for lo, hi in self.crop)
        return text + (f" g{self.groups}" if self.groups > 1 else "")


def parse_layer(fields: dict[str, Any]) -> Layer:
    """Reads one layer, and checks that its sizes agree.

    Args:
        fields: id, n, cin, cout, h, w, kh, kw; optionally stride, dilation, groups,
            bias, dtype, layout, core, and either crop_lo_hi, or padding with
            output_padding. oh and ow are checked if they are there.

    Raises:
        ValueError: if a field is missing or sizes disagree; names the layer.
    """
    name = fields.get("id", "?")

    def pair(key: str, default: int) -> Pair:
        value = fields.get(key, default)
        a, b = (value, value) if isinstance(value, int) else value
        return int(a), int(b)

    missing = [
        k for k in ("id", "n", "cin", "cout", "h", "w", "kh", "kw") if k not in fields
    ]
    if missing:
        raise ValueError(f"layer {name}: missing {', '.join(missing)}")
    if "crop_lo_hi" in fields:
        (a, b), (c, d) = fields["crop_lo_hi"]
        crop = ((a, b), (c, d))
    else:
        p, op = pair("padding", 0), pair("output_padding", 0)
        crop = ((p[0], p[0] - op[0]), (p[1], p[1] - op[1]))
    layer = Layer(
        id=name,
        n=fields["n"],
        cin=fields["cin"],
        cout=fields["cout"],
        size=(fields["h"], fields["w"]),
        kernel=(fields["kh"], fields["kw"]),
        stride=pair("stride", 1),
        dilation=pair("dilation", 1),
        crop=crop,
        groups=fields.get("groups", 1),
        dtype=fields.get("dtype", "fp32"),
        layout=fields.get("layout", "NCHW"),
        bias=fields.get("bias", False),
        core=fields.get("core", False),
    )
    if layer.dtype not in DTYPES or layer.layout not in LAYOUTS:
        raise ValueError(f"layer {name}: unknown {layer.dtype} or {layer.layout}")
    if layer.cin % layer.groups or layer.cout % layer.groups:
        raise ValueError(f"layer {name}: channels must divide into groups")
    given = (fields.get("oh"), fields.get("ow"))
    if given != (None, None) and given != layer.out_size:
        raise ValueError(f"layer {name}: output is {layer.out_size}, file says {given}")
    if min(layer.out_size) < 1:
        raise ValueError(f"layer {name}: output {layer.out_size} is empty")
    return layer


def _all_layers() -> dict[str, Layer]:
    layers = json.loads((SHAPES / "layers.json").read_text())
    return {fields["id"]: parse_layer(fields) for fields in layers}


def seed_ids() -> list[str]:
    """Ids of the seed problems."""
    return json.loads((SHAPES / "seeds.json").read_text())


def load_suite(suite: str) -> list[Layer]:
    """Layers of "seeds", "core", "all", or of a JSON file.

    Raises:
        ValueError: if there is no such suite, file or layer.
    """
    known = _all_layers()
    if suite == "all":
        return list(known.values())
    if suite == "core":
        return [layer for layer in known.values() if layer.core]
    if suite == "seeds":
        items: Any = seed_ids()
    else:
        path = pathlib.Path(suite)
        if not path.is_file():
            raise ValueError(f"suite must be {', '.join(SUITES)} or a file: {suite!r}")
        items = json.loads(path.read_text())
    found = []
    for item in items:
        if isinstance(item, str) and item not in known:
            raise ValueError(f"no layer {item!r} in layers.json")
        found.append(known[item] if isinstance(item, str) else parse_layer(item))
    return found


def select(layers: Iterable[Layer], pattern: str | None) -> list[Layer]:
    """Layers whose id a regular expression finds."""
    return [x for x in layers if pattern is None or re.search(pattern, x.id)]


def cut_to(layer: Layer, macs: int = CPU_MACS) -> Layer:
    """Shrinks the batch, then the image, until a pass costs at most `macs`.

    Kernel, stride, channels and crop stay, since they decide which code runs; an image
    is not made smaller than 4 pixels a side.
    """
    if layer.macs <= macs:
        return layer
    small = dataclasses.replace(layer, n=max(1, layer.n * macs // layer.macs))
    while small.macs > macs:
        h, w = small.size
        if max(h, w) <= 4:
            break
        size = (max(h // 2, 4), w) if h >= w else (h, max(w // 2, 4))
        smaller = dataclasses.replace(small, size=size)
        if min(smaller.out_size) < 1:
            break
        small = smaller
    h, w = small.size
    return dataclasses.replace(small, cut=f"n{small.n} {h}x{w}")


def variants(layer: Layer, dtypes: list[str], layouts: list[str]) -> list[Layer]:
    """The layer in other dtypes and layouts; "own" stands for its own."""
    kinds = dict.fromkeys(
        (
            layer.dtype if dtype == "own" else dtype,
            layer.layout if layout == "own" else layout,
        )
        for dtype in dtypes
        for layout in layouts
    )
    return [dataclasses.replace(layer, dtype=d, layout=lay) for d, lay in kinds]
