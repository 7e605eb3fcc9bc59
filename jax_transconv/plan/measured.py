"""Which row is faster: the rules by which `auto` passes a row by.

From benchmarks/REPORT.md, benchmarks/NOTES.md and the runs behind them, on an H200 and
most of them in float32. Estimates: groups in 16 bits, the Hopper rows from 16 channels
a group on, whatever the stride, and on other cards the rows for few channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jax_transconv.ffi import targets
from jax_transconv.plan.device import DeviceFacts
from jax_transconv.spec import Precision, Spec

# Why a row does not take a pass of a problem on a device, or None.
Rule = Callable[[str, Spec, DeviceFacts], "str | None"]

_FORWARD, _INPUT, _WEIGHT = targets.PASSES

_SMALL_IMAGE = 64
_MANY_CHANNELS = 128


def small_dense(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """On few pixels XLA:CPU's own matrix products waste less than whole tiles."""
    del facts
    if pass_name == _WEIGHT or spec.geometry.groups > 1:
        return None
    pixels = spec.in_size[0] * spec.in_size[1]
    many = pass_name == _INPUT or spec.in_channels >= _MANY_CHANNELS
    if pixels <= _SMALL_IMAGE and many:
        return f"images of {pixels} pixels are too small for its tiles"
    return None


def phases_lose(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where XLA's stretched convolution is as fast as one for each phase."""
    del pass_name
    g = spec.geometry
    if not spec.is_strided:
        return "without a stride it is the same correlation as xla:dilated"
    if facts.platform != "cpu" and g.groups == 1 and g.dilation == (1, 1):
        return "XLA maps xla:dilated to a library's backward-data convolution"
    if facts.platform == "cpu" and g.groups == 1 and g.dilation == (1, 1):
        return "XLA:CPU runs the stretched form as fast"
    return None


def taps_lose(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where a product for each tap moves more than one convolution."""
    if pass_name != _WEIGHT:
        return "reads and writes the result once for every tap"
    if facts.platform != "cpu":
        return "XLA maps xla:filter to a library's filter-gradient convolution"
    if not spec.is_strided:
        return "without a stride xla:filter is one plain convolution"
    return None


_FEW_PIXELS = {_FORWARD: 1 << 12, _INPUT: 1 << 14, _WEIGHT: 1 << 17}
_FEW_STRIDED = 1 << 13  # of a strided weight gradient
_MUCH_STRIDED = 3 << 31  # of which so many multiply-adds fill a card all the same
_WIDE_PIXELS = 1 << 10  # of groups of a wide matrix
_LITTLE_WORK = 1 << 30  # multiply-adds
_LARGE_STRIDE = 4
_LARGE_STRIDE_PIXELS = 1 << 13
_FEW_SCORES = 1 << 12  # pixels
_SMALL_ROW = 16  # of a pass that is a matrix product
_WIDE_MATRIX = 512  # channels on both sides
_FEW_TAPS_16_BIT = 9
_MANY_TAPS_16_BIT = 16
_FEW_CHANNELS = 16
_HALF_TILE = 32
_ROW = 64
_LONG_ROW = 128  # of a 16-bit image
_SECTOR = 16  # elements of 16 bits
_ROLLING_TAPS = 3  # each way, in one pass of the rolling weight gradient
_MOST_WASTE, _MOST_FOLDED_WASTE = 1.6, 1.3


def _products(spec: Spec) -> int:
    """Multiply-adds, about: one for every pixel of x, tap and pair of channels."""
    pixels = spec.batch * math.prod(spec.in_size)
    return pixels * spec.taps * spec.in_channels * spec.out_per_group


def _strided_loses(pass_name: str, spec: Spec) -> str | None:
    g = spec.geometry
    if not spec.is_strided or g.dilation != (1, 1):
        return None
    pixels = spec.batch * math.prod(spec.in_size)
    if max(g.stride) > _LARGE_STRIDE or (
        max(g.stride) > 2 and pixels < _LARGE_STRIDE_PIXELS
    ):
        return f"a library's convolution of stride {max(g.stride)} is faster"
    channels = spec.in_channels, spec.out_channels
    narrow = pass_name == _INPUT or max(channels) <= _HALF_TILE
    if min(channels) < _HALF_TILE and narrow:
        return f"fewer than {_HALF_TILE} channels leave its operands half empty"
    if min(channels) >= _WIDE_MATRIX and pass_name == _FORWARD:
        return f"a library's matrix product of {_WIDE_MATRIX} channels is faster"
    covered = all(k <= s for k, s in zip(spec.kernel_size, g.stride, strict=True))
    small = pass_name == _FORWARD and spec.in_size[1] < _SMALL_ROW
    many = min(channels) > _MANY_CHANNELS
    if covered and small and many:
        return f"a library is faster for rows of fewer than {_SMALL_ROW} pixels"
    if pass_name == _INPUT and covered and spec.in_channels > _MANY_CHANNELS:
        return "a library's matrix product of many channels is faster"
    return None


def _library_wins_in_16_bits(pass_name: str, spec: Spec, rolling: bool) -> bool:
    g = spec.geometry
    channels = max(spec.in_per_group, spec.out_per_group)
    if spec.is_strided:
        few = channels <= _MANY_CHANNELS and spec.taps <= _FEW_TAPS_16_BIT
        return g.dilation == (1, 1) and (pass_name == _WEIGHT or not few)
    if rolling:
        return False
    short = spec.in_size[1] < _LONG_ROW or channels > _MANY_CHANNELS
    return pass_name == _WEIGHT or short


def _upsamples_scores(spec: Spec) -> bool:
    """Whether few channels are spread far, as in FCN's last layer."""
    channels = max(spec.in_channels, spec.out_channels)
    return max(spec.geometry.stride) > _LARGE_STRIDE and channels <= _HALF_TILE


def _cut_strips_lose(pass_name: str, spec: Spec) -> bool:
    """Whether rolling strips of a 16-bit target have no columns to spare for a cut."""
    if pass_name == _WEIGHT or spec.itemsize != 2:
        return False
    if pass_name == _FORWARD:
        source, columns = spec.in_per_group, spec.out_size[1]
    else:
        source, columns = spec.out_per_group, spec.in_size[1]
    return source > _HALF_TILE and columns % _SECTOR != 0


def hopper_loses(rolling: bool = False, packed: bool = False) -> Rule:
    """Where a vendor's library behind XLA, or another of ours, beats a Hopper kernel.

    Args:
        rolling: whether whole rows pass through the kernel, which reads them once.
        packed: whether it is the weight gradient of packed cells.
    """

    def defers(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
        del facts
        g = spec.geometry
        channels = spec.in_per_group, spec.out_per_group
        if g.groups > 1:
            if min(channels) < _FEW_CHANNELS:
                return f"fewer than {_FEW_CHANNELS} channels a group waste its tiles"
            pixels = spec.batch * math.prod(spec.in_size)
            wide = spec.itemsize == 2 and min(channels) >= _WIDE_MATRIX
            wide &= not packed or pixels < _WIDE_PIXELS
            if pass_name == _WEIGHT and wide:
                return f"a library is faster with {_WIDE_MATRIX} channels a group"
            return None
        if spec.dtype == "float32" and g.precision > Precision.DEFAULT:
            return None  # the library falls back to kernels many times slower
        if g.layout == "NHWC":
            return "a library's channels-last convolution is faster"
        work = _products(spec)
        much = packed and spec.is_strided and work >= _MUCH_STRIDED
        many_taps = much and spec.taps > _MANY_TAPS_16_BIT
        library = _library_wins_in_16_bits(pass_name, spec, rolling)
        if spec.itemsize == 2 and library and not many_taps:
            return "a library's 16-bit convolution is faster"
        tile = not _library_wins_in_16_bits(pass_name, spec, rolling=False)
        if rolling and tile and _cut_strips_lose(pass_name, spec):
            return "strips cut at sectors are narrower than cuda:sm90_tile's"
        pixels = spec.batch * spec.in_size[0] * spec.in_size[1]
        if pass_name == _FORWARD and _upsamples_scores(spec):
            if pixels < _FEW_SCORES:
                return f"fewer than {_FEW_SCORES} pixels do not fill its tiles"
            return None
        few = _FEW_PIXELS[pass_name]
        if pass_name == _WEIGHT and spec.is_strided:
            few = _FEW_STRIDED
        if pixels < few and not much:
            return f"fewer than {few} pixels do not fill its tiles"
        half = pass_name != _WEIGHT and min(channels) <= _HALF_TILE
        if work < (2 if half else 1) * _LITTLE_WORK:
            return "too little work to fill a card's multiprocessors"
        return _strided_loses(pass_name, spec)

    return defers


def portable_loses(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """On cards where the portable tensor-core rows are not known to be faster."""
    del pass_name, spec
    if facts.capability == (9, 0):
        return "the kernels for Hopper are faster"
    return "it has not been measured on this card"


_FEW_ROWS = 512  # pixels of the matrix product's shorter side
_MANY_SUMMED = 1024  # channels of a side
_VECTOR = 8  # bytes that a copy should have


def gemm_loses(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where the matrix product of a kernel that is the stride loses.

    Measured from 576 pixels and 32 channels on, without groups.
    """
    del facts
    if spec.kernel_size != spec.geometry.stride:
        return "the kernel is not the stride"
    if spec.geometry.groups > 1 or spec.taps == 1:
        return "groups and kernels of one tap have not been measured"
    if min(spec.in_channels, spec.out_channels) < _HALF_TILE:
        return f"fewer than {_HALF_TILE} channels leave its tiles half empty"
    pixels = spec.batch * math.prod(spec.in_size)
    if pixels < _FEW_ROWS:
        return f"fewer than {_FEW_ROWS} pixels do not fill its tiles"
    many = max(spec.in_channels, spec.out_channels)
    row = spec.out_size[1] * spec.itemsize
    if spec.kernel_size[0] == 1:  # rows follow one another on both sides
        row *= spec.out_size[0]
    sixteen = pass_name == _WEIGHT and spec.itemsize == 2
    if sixteen and many >= _MANY_SUMMED and row % _VECTOR != 0:
        return f"with {_MANY_SUMMED} channels rows of {row} bytes are copied too slowly"
    image = math.prod(spec.in_size) * spec.itemsize
    if pass_name == _WEIGHT and many > _WIDE_MATRIX and image % _VECTOR != 0:
        return f"images of {image} bytes are copied value by value"
    return None


_NARROWEST_LINE = 6  # pixels
_FEWEST_CHANNELS = 8
_FEWEST_PIXELS = 1 << 8
_DEEP_PIXELS = 1 << 13  # of an input gradient of wide matrices
_SMALL_PIXELS = 1 << 12  # of an input gradient without a stride
# Of a forward pass in two dimensions: pixels, and multiply-adds up to so many of them.
_FEW_FORWARD_PIXELS, _SOME_FORWARD_PIXELS = 1 << 11, 1 << 12
_LITTLE_FORWARD_WORK, _SOME_FORWARD_WORK = 1 << 31, 1 << 32
_MUCH_WORK = 1 << 33
_SMALL_KERNEL = 9  # taps


_LITTLE_EXACT_WORK = 5 << 28  # multiply-adds of three products each
_FEW_EXACT_TAPS = 4


def _skips_rows(spec: Spec) -> bool:
    """Whether some rows of y have no tap, and few channels: lines leave such rows out.

    Measured on KernelBench 81, 32 and 64 channels, stride 5, dilation 2.
    """
    g = spec.geometry
    stride, dilation = g.stride[0], g.dilation[0]
    residues = {dilation * k % stride for k in range(spec.kernel_size[0])}
    few = max(spec.in_channels, spec.out_channels) <= _ROW
    return dilation > 1 and len(residues) < stride and few


def lines_lose(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where the matrix product of lines loses.

    It multiplies TF32, half as fast as the tile kernel's 16-bit products, but copies
    what that one gathers and converts: faster where there is little to multiply for
    what is read. Measured from 8 channels on.
    """
    del facts
    g = spec.geometry
    channels = spec.in_channels, spec.out_channels
    pixels = spec.batch * math.prod(spec.in_size)
    work = _products(spec)
    exact = g.precision > Precision.DEFAULT
    skips_rows = exact and pass_name == _INPUT and _skips_rows(spec)
    if g.groups > 1:
        return "groups have not been measured"
    if g.dilation != (1, 1) and not skips_rows:
        return "dilations have not been measured, or other rows are as fast"
    if min(channels) < _FEWEST_CHANNELS:
        return f"fewer than {_FEWEST_CHANNELS} channels leave its tiles empty"
    if spec.in_size[1] < _NARROWEST_LINE or pixels < _FEWEST_PIXELS:
        return (
            f"lines of fewer than {_NARROWEST_LINE} pixels, or fewer than "
            f"{_FEWEST_PIXELS} in all, do not fill its tiles"
        )
    axes = zip(spec.kernel_size, g.stride, strict=True)
    if skips_rows:
        return None
    if exact and not spec.is_strided:
        return "without a stride it has been measured with one product alone"
    few_taps = spec.taps <= _FEW_EXACT_TAPS and spec.in_channels > _ROW
    if exact and (work > _LITTLE_EXACT_WORK or few_taps):
        return "three 16-bit products are faster than three of TF32"
    if not spec.is_strided:
        small = _SMALL_PIXELS <= pixels <= 2 * _SMALL_PIXELS and spec.taps > 1
        if pass_name == _INPUT and small and max(channels) <= _MANY_CHANNELS:
            return None
        return "without a stride other rows read every pixel once, too"
    if all(k <= s for k, s in axes):
        return "every pixel of y has one tap at most"
    if pass_name == _INPUT:
        if max(channels) >= _WIDE_MATRIX and pixels < _DEEP_PIXELS:
            return f"a library is faster with {_WIDE_MATRIX} channels of few pixels"
        much = (1 if spec.taps > _SMALL_KERNEL else 4) * _MUCH_WORK
        if spec.in_channels > _MANY_CHANNELS:
            much = 8 * _MUCH_WORK
        elif spec.in_channels < _HALF_TILE:
            much = much * spec.in_channels // _ROW  # columns of an instruction
        if work >= much:
            return "16-bit products of many pixels are faster"
        return None
    k, s = spec.kernel_size[1], g.stride[1]
    if spec.out_size[1] % s != 0 or (s > 2 and k % s != 0):
        return "residues of unequal sizes or taps leave its tiles empty"
    spread = s > _LARGE_STRIDE and max(channels) <= _ROW
    few = spec.in_size[0] == 1 or spread or pixels < _FEW_FORWARD_PIXELS
    some = pixels <= _SOME_FORWARD_PIXELS and work <= _SOME_FORWARD_WORK
    little = work <= _LITTLE_FORWARD_WORK and min(channels) >= _HALF_TILE
    if not ((few and work < _MUCH_WORK) or some or little):
        return "16-bit products of many pixels are faster"
    return None


_FEW_LINE_PIXELS = 16
_MANY_LINE_POSITIONS = 1 << 10
_FEW_UNSTRIDED = 1 << 13  # positions of a layer without a stride
# Microseconds of both rows on an H200, fitted to 106 layers: what either chooses by
# them takes 1.02 times the faster one's time in the mean. A product of lines takes as
# long however few channels of x there are, up to 128; cells are packed pixel by pixel,
# multiplied 64 x 64 channels at a time, and have their sums added for every weight.
_LINE_PRODUCTS, _CELL_PRODUCTS = 1e8, 4e8  # in a microsecond
_PACKED_PIXELS, _ADDED_WEIGHTS = 5e5, 3e5
_CELL_LAUNCHES = 10


def _lines_outlast_cells(spec: Spec) -> bool:
    pixels = spec.batch * math.prod(spec.in_size) * spec.in_channels
    pixels += spec.batch * math.prod(spec.out_size) * spec.out_channels
    weights = spec.taps * spec.in_channels * spec.out_channels
    padded = _products(spec)
    for channels in (spec.in_channels, spec.out_channels):
        padded *= -(-channels // _ROW) * _ROW / channels
    narrow = max(1, _MANY_CHANNELS / spec.in_channels)
    lines = _products(spec) * narrow / _LINE_PRODUCTS
    cells = _CELL_LAUNCHES + pixels / _PACKED_PIXELS
    cells += padded / _CELL_PRODUCTS + weights / _ADDED_WEIGHTS
    return lines > cells


_MOST_PACKED = 1 << 26  # cells of an image that the kernel packs


def _packs(spec: Spec, facts: DeviceFacts) -> bool:
    """Whether `auto` would take the weight gradient of packed cells."""
    images = (
        math.prod(spec.in_size) * -(-spec.in_channels // 8),
        math.prod(spec.out_size) * -(-spec.out_channels // 8),
    )
    if spec.batch * max(images) > _MOST_PACKED:
        return False
    rules = packing_loses, hopper_loses(packed=True)
    return all(rule(_WEIGHT, spec, facts) is None for rule in rules)


def lines_wgrad_loses(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where the weight gradient that packs neither image loses to those that do."""
    del pass_name
    if spec.geometry.groups > 1:
        return "groups have not been measured"
    if not spec.is_strided:
        if spec.batch * math.prod(spec.in_size) > _FEW_UNSTRIDED:
            return "without a stride other rows read every pixel once, too"
        if spec.geometry.dilation != (1, 1) or spec.taps == 1:
            return "without a stride dilations and single taps have not been measured"
    if spec.in_channels < _HALF_TILE:
        return f"fewer than {_HALF_TILE} channels leave its tiles empty"
    if spec.in_size[1] % 2 or spec.out_size[1] % 2:
        return "rows of odd width are copied value by value"
    pixels = math.prod(spec.in_size)
    if pixels <= _FEW_LINE_PIXELS and spec.batch * pixels >= _MANY_LINE_POSITIONS:
        return f"images of {pixels} pixels are cut into many short lines"
    if spec.is_strided and _lines_outlast_cells(spec) and _packs(spec, facts):
        return f"{_products(spec)} products are worth packing for"
    return None


def half_empty(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where the Hopper weight gradient's tiles are mostly padding."""
    del pass_name, facts
    g = spec.geometry
    if spec.dtype != "float32" or g.precision == Precision.DEFAULT or g.groups > 1:
        return None
    if max(spec.in_channels, spec.out_channels) <= _HALF_TILE:
        return f"{_HALF_TILE} channels waste three quarters of its tiles"
    return None


# Of the rolling weight gradient with three products: channels of a block, and taps of
# 64 x 64 channels that take another row as long as a block's pass, with a margin.
_SPLIT_CHANNELS = 32
_TAPS_FOR_A_PASS = 2


def split_loses(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where blocks of half as many channels read the images too often.

    Measured with 64 x 64 channels: 3 x 3 taps 4.9 ms and 6.8 in another row, 3 x 7 taps
    4.4 and 3.2.
    """
    del pass_name, facts
    if spec.dtype != "float32" or spec.geometry.precision == Precision.DEFAULT:
        return None
    channels = spec.in_per_group, spec.out_per_group
    blocks = math.prod(-(-c // _SPLIT_CHANNELS) for c in channels)
    passes = math.prod(-(-k // _ROLLING_TAPS) for k in spec.kernel_size)
    tiles = math.prod(-(-c // (2 * _SPLIT_CHANNELS)) for c in channels)
    if blocks > 1 and _TAPS_FOR_A_PASS * blocks * passes > tiles * spec.taps:
        return (
            f"blocks of {_SPLIT_CHANNELS} channels and {_ROLLING_TAPS} x "
            f"{_ROLLING_TAPS} taps would pass over the images {blocks * passes} times"
        )
    return None


_FEW_ROLLING_PRODUCTS = 1 << 33


def few_strips(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where packed images are multiplied sooner than strips of them have started.

    Measured in float32, without groups: 4.8e9 products 0.130 ms, and 0.097 of packed
    cells; 9.7e9 0.172 and 0.171 (by events).
    """
    del pass_name
    default = spec.itemsize == 4 and spec.geometry.precision == Precision.DEFAULT
    if not default or spec.geometry.groups > 1:
        return None
    if _products(spec) < _FEW_ROLLING_PRODUCTS and _packs(spec, facts):
        return f"{_products(spec)} products are worth packing for"
    return None


def short_rows(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where rows are shorter than the rolling weight gradient's strips."""
    del pass_name, facts
    if spec.in_size[1] < _ROW:
        return f"rows of fewer than {_ROW} pixels do not fill its tiles"
    return None


def half_strips(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where rows of targets leave much of a tile's columns empty."""
    del facts
    if _upsamples_scores(spec):
        return None  # measured
    if pass_name == _INPUT:
        columns = spec.in_size[1]
    else:
        columns = -(-spec.out_size[1] // spec.geometry.stride[1])
    if columns < _ROW // 2 and -(-columns // 8) * 8 > _MOST_FOLDED_WASTE * columns:
        return f"rows of {columns} targets leave much of groups of 8 empty"
    if columns > _ROW and -(-columns // _ROW) * _ROW > _MOST_WASTE * columns:
        return f"rows of {columns} targets leave much of strips of {_ROW} empty"
    return None


_REPAYING = 16  # taps


def packing_loses(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where packing both images first costs more than it saves."""
    del pass_name, facts
    # Every pixel is packed once, and gathered once for each block of channels and taps.
    taps = spec.taps / math.prod(spec.geometry.stride)
    channels = spec.in_per_group, spec.out_per_group
    if taps <= 2 and spec.taps < _REPAYING and min(channels) <= _MANY_CHANNELS:
        return "few taps read a pixel, which does not repay packing it"
    exact = spec.itemsize == 4 and spec.geometry.precision > Precision.DEFAULT
    if exact and spec.is_strided and min(channels) <= _ROW:
        return f"blocks of {_ROW} channels gather what three products take as fast"
    return None


_FEW_FLOAT64_TAPS = 16
# Heights and strides of square kernels that have an instance with a column's weights in
# registers (core/depthwise_plan.h).
_COLUMNS_IN_REGISTERS = {(2, 2), (3, 1), (3, 2), (4, 2), (5, 1), (5, 2)}


def _float64_depthwise_loses(pass_name: str, spec: Spec) -> str | None:
    g = spec.geometry
    single = spec.in_per_group == spec.out_per_group == 1
    few = single and spec.taps <= _FEW_FLOAT64_TAPS
    columns = g.layout == "NCHW" and g.dilation == (1, 1)
    columns &= spec.kernel_size[1] <= spec.kernel_size[0]
    columns &= (spec.kernel_size[0], g.stride[0]) in _COLUMNS_IN_REGISTERS
    if pass_name == _INPUT and spec.itemsize == 8 and few and not columns:
        return "without a column's weights in registers a library is faster in float64"
    return None


_TINY = 4  # channels on one side; on the other, and taps, at most:
_DIRECT_CHANNELS = 64
_DIRECT_TAPS = 64
_DIRECT_POSITIONS = 1 << 14  # and positions of a weight gradient at least


def direct_loses(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where the kernels without tensor cores lose: from some channels on."""
    del facts
    g = spec.geometry
    few, many = sorted((spec.in_per_group, spec.out_per_group))
    if g.groups > 1:
        if few >= _FEW_CHANNELS:
            return f"{_FEW_CHANNELS} channels a group fill tiles of tensor cores"
        if g.layout == "NHWC":
            return "a block is of one group, whose channels are a part of every sector"
        return _float64_depthwise_loses(pass_name, spec)
    scores = g.layout == "NCHW" and spec.itemsize == 4 and _upsamples_scores(spec)
    if pass_name == _INPUT and scores:
        return None
    if _small_head(pass_name, spec):
        return None
    if few > _TINY:
        return f"more than {_TINY} dense channels are a library's matrix product"
    if spec.itemsize == 2:
        return "a library's 16-bit convolution is faster"
    if g.layout == "NHWC" and pass_name != _FORWARD:
        return "a library's channels-last convolution is faster"
    if pass_name != _INPUT and many > _DIRECT_CHANNELS:
        return f"a library is faster with more than {_DIRECT_CHANNELS} channels"
    if pass_name == _WEIGHT:
        if spec.taps > _DIRECT_TAPS:
            return f"more than {_DIRECT_TAPS} taps share too little in a tile"
        if spec.batch * math.prod(spec.in_size) < _DIRECT_POSITIONS:
            return f"fewer than {_DIRECT_POSITIONS} positions do not fill its tiles"
    return None


_FLOAT64_TILE = 64  # positions and channels
_FEWEST_FLOAT64_TILES = 64


def float64_loses(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where float64's tensor cores are not known to be faster."""
    if facts.capability != (9, 0):
        return "it has not been measured on this card"
    if spec.geometry.groups > 1:
        return "groups have not been measured"
    if pass_name == _FORWARD and spec.geometry.layout == "NHWC":
        return "channels last, its rows are not neighbours in memory"
    if pass_name == _FORWARD and direct_loses(pass_name, spec, facts) is None:
        return "few results of few channels are memory's time"
    if pass_name == _WEIGHT:
        return None
    forward = pass_name == _FORWARD
    positions = spec.batch * math.prod(spec.out_size if forward else spec.in_size)
    channels = spec.out_channels if forward else spec.in_channels
    tiles = math.ceil(positions / _FLOAT64_TILE) * math.ceil(channels / _FLOAT64_TILE)
    if tiles < _FEWEST_FLOAT64_TILES:
        return f"{tiles} tiles leave most of the card idle"
    return None


_FEWEST_A_GROUP = 4
_FEW_STEPS = 1 << 13  # positions times taps
# Positions and taps of a weight gradient that cuda:direct_wgrad takes in one launch.
_FEW_POSITIONS = 1 << 11
_ONE_LAUNCH_TAPS = 16
_FEWEST_COLUMNS = 8
_MANY_TAPS = 64
# Taps from which it beats a library's 16-bit convolution of few channels.
_FAST_16_BIT = {_FORWARD: 1, _INPUT: 16, _WEIGHT: 16}
_PIXEL_VECTOR = 8  # channels
_PIXEL_WEIGHTS = 512  # of an input channel


def _takes_16_bits(pass_name: str, spec: Spec) -> bool:
    """Whether few channels of 16 bits are multiplied as they are."""
    if spec.taps < _FAST_16_BIT[pass_name]:
        return False
    if pass_name != _WEIGHT:
        return True
    # Other problems' weight gradients are made float32 first, which a library beats.
    return (
        spec.geometry.layout == "NHWC"
        and spec.in_channels % _PIXEL_VECTOR == 0
        and spec.in_size[1] > _PIXEL_VECTOR
        and spec.out_size[1] * spec.out_channels % 2 == 0
        and spec.out_channels * spec.taps <= _PIXEL_WEIGHTS
    )


_HEAD_WEIGHTS = 24 << 10  # that a block has in shared memory


def _small_head(pass_name: str, spec: Spec) -> bool:
    """Whether cuda:direct has a kernel for many channels into one or two."""
    g = spec.geometry
    return (
        pass_name == _FORWARD
        and g.groups == 1
        and g.layout == "NCHW"
        and spec.dtype == "float32"
        and spec.kernel_size == (4, 4)
        and (g.stride, g.dilation) == ((2, 2), (1, 1))
        and spec.out_channels <= 2
        and spec.in_channels >= _MANY_CHANNELS
        and spec.in_channels * spec.out_channels * spec.taps <= _HEAD_WEIGHTS
        and spec.batch * math.prod(spec.in_size) <= _FEW_SCORES
    )


def im2col_loses(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where TF32 products of channels and taps together lose: from some channels on."""
    del facts
    g = spec.geometry
    few, many = sorted((spec.in_per_group, spec.out_per_group))
    if g.groups > 1:
        if few >= _FEW_CHANNELS:
            return f"{_FEW_CHANNELS} channels a group fill larger tiles"
        if g.layout == "NHWC":
            return "a block is of one group, whose channels are a part of every sector"
        if pass_name == _FORWARD:
            return "a group's columns are more than what they are made from"
        if pass_name == _INPUT and few < _FEWEST_A_GROUP:
            return f"fewer than {_FEWEST_A_GROUP} channels a group waste its operands"
        positions = spec.batch * math.prod(spec.in_size)
        if pass_name == _WEIGHT and positions * spec.taps < _FEW_STEPS:
            return f"fewer than {_FEW_STEPS} products a channel do not fill its tiles"
        short = positions <= _FEW_POSITIONS and spec.taps <= _ONE_LAUNCH_TAPS
        if pass_name == _WEIGHT and short:
            return f"up to {_FEW_POSITIONS} positions take two launches, not one"
        return None
    if many < _FEWEST_COLUMNS and pass_name != _WEIGHT:
        return f"fewer than {_FEWEST_COLUMNS} channels waste its operands"
    if spec.itemsize == 2 and (few > _TINY or not _takes_16_bits(pass_name, spec)):
        return "a library's 16-bit convolution is faster"
    if _small_head(pass_name, spec):
        return "cuda:direct reads the weights of two channels once"
    if pass_name == _FORWARD:
        if spec.out_channels > _TINY:
            return f"more than {_TINY} channels of y have too many columns"
    elif pass_name == _WEIGHT and many <= _HALF_TILE and spec.taps >= _MANY_TAPS:
        return None
    elif few > _FEW_CHANNELS or (few > _TINY and many > _DIRECT_CHANNELS):
        return f"more than {_FEW_CHANNELS} channels fill larger tiles"
    return None


_LIBRARY_CHANNELS = 8


def library_wins(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """Where a vendor's library behind XLA beats the general CUDA kernel."""
    del facts
    if spec.geometry.groups == 1:
        return "a library's tensor-core convolution is faster for dense channels"
    if reason := _float64_depthwise_loses(pass_name, spec):
        return reason
    channels = min(spec.in_per_group, spec.out_per_group)
    exact = spec.dtype == "float32" and spec.geometry.precision > Precision.DEFAULT
    if channels >= _LIBRARY_CHANNELS and not (exact and pass_name == _WEIGHT):
        return f"a library is faster from {_LIBRARY_CHANNELS} channels a group on"
    return None
