"""Problems that the tests run: named tables and hypothesis strategies."""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from hypothesis import strategies as st

DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem.

    ``padding`` is torch's pair, or a signed crop ``((lo, hi), (lo, hi))``.
    """

    name: str
    n: int = 1
    cin: int = 1
    cout: int = 1
    h: int = 1
    w: int = 1
    kh: int = 1
    kw: int = 1
    stride: tuple[int, int] = (1, 1)
    padding: tuple = (0, 0)
    output_padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = True
    dtype: str = "float32"
    layout: str = "NCHW"

    def __str__(self) -> str:
        return self.name

    @property
    def is_torch(self) -> bool:
        """Whether torch's own arguments can say it."""
        return not isinstance(self.padding[0], tuple)

    @property
    def crop(self) -> oracle.Crop:
        if self.is_torch:
            return oracle.torch_crop(self.padding, self.output_padding)
        return self.padding

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Logical shape: NCHW."""
        return self.n, self.cin, self.h, self.w

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.cin, self.cout // self.groups, self.kh, self.kw

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Logical shape: NCHW."""
        spatial = (
            oracle.out_extent(*axis)
            for axis in zip(
                (self.h, self.w),
                (self.kh, self.kw),
                self.stride,
                self.dilation,
                self.crop,
                strict=True,
            )
        )
        return self.n, self.cout, *spatial

    @property
    def reduction(self) -> int:
        """Products in the longest sum of any pass."""
        taps = self.kh * self.kw
        per_group = max(self.cin, self.cout) // self.groups
        out = self.out_shape
        return max(per_group * taps, self.n * max(self.h * self.w, out[2] * out[3]))

    @property
    def geometry(self) -> dict:
        """Arguments of the oracle."""
        return {
            "stride": self.stride,
            "crop": self.crop,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    @property
    def kwargs(self) -> dict:
        """Arguments of the function under test."""
        keywords = {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "layout": self.layout,
        }
        if self.is_torch:
            keywords["output_padding"] = self.output_padding
        if self.dtype == "float32":
            # TF32 has a test of its own; everywhere else float32 means float32.
            keywords["precision"] = "highest"
        return keywords

    @property
    def torch_kwargs(self) -> dict:
        """Arguments of torch.nn.functional.conv_transpose2d."""
        assert self.is_torch
        return {
            "stride": self.stride,
            "padding": self.padding,
            "output_padding": self.output_padding,
            "groups": self.groups,
            "dilation": self.dilation,
        }

    def replace(self, **changes) -> "Case":
        return dataclasses.replace(self, **changes)

    def data(self) -> "Data":
        """Operands and a cotangent, drawn from the name: always the same."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        dtype = jnp.dtype(self.dtype)

        def draw(shape):
            return rng.standard_normal(shape).astype(dtype)

        return Data(
            draw(self.x_shape),
            draw(self.weight_shape),
            draw((self.cout,)) if self.bias else None,
            draw(self.out_shape),
        )

    def expected(self, data: "Data | None" = None) -> dict[str, oracle.Expected]:
        """The oracle's "y", "dx", "dw" and "db", all in NCHW."""
        data = data or self.data()
        return oracle.expected_passes(
            data.x, data.weight, data.bias, data.dy, **self.geometry
        )

    def to_layout(self, array):
        """NCHW to the layout of the case."""
        if self.layout == "NHWC":
            return array.transpose(0, 2, 3, 1)
        return array

    def from_layout(self, array) -> np.ndarray:
        """The layout of the case to NCHW, as numpy."""
        array = np.asarray(array)
        return array.transpose(0, 3, 1, 2) if self.layout == "NHWC" else array


@dataclasses.dataclass(frozen=True)
class Data:
    """numpy operands of one case, NCHW; bias may be None."""

    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray | None
    dy: np.ndarray


def _table() -> tuple[Case, ...]:
    """Small awkward problems, for every candidate row.

    No two axes are alike where that can be helped: a swap of H and W, of in and out
    channels or of lo and hi has to change the numbers.
    """
    case = Case
    rows = [
        # One thing at a time.
        case("pointwise", 2, 3, 5, 4, 3),
        case("pointwise_stride3", 1, 2, 3, 3, 4, stride=(3, 2)),
        case("one_pixel", 2, 7, 3, 1, 1, 4, 3),
        case("one_pixel_k1", 1, 1, 1, 1, 1),
        case("plain_3x3", 2, 3, 4, 5, 6, 3, 3),
        case("rect_kernel", 1, 3, 4, 6, 5, 2, 5),
        case("wide_kernel_tall_map", 1, 2, 3, 7, 2, 1, 6),
        case("tall_kernel_wide_map", 1, 3, 2, 2, 9, 5, 1),
        case("no_bias", 2, 3, 4, 5, 4, 3, 2, bias=False),
        case("stride2_k4_p1", 2, 5, 4, 4, 6, 4, 4, (2, 2), (1, 1)),
        case("stride2_k3_p1_op1", 1, 4, 3, 5, 4, 3, 3, (2, 2), (1, 1), (1, 1)),
        case("stride_h_only", 1, 3, 2, 4, 5, 3, 3, (3, 1), (1, 0), (2, 0)),
        case("stride_w_only", 1, 2, 3, 5, 4, 3, 3, (1, 3), (0, 1), (0, 2)),
        case("stride3_k9", 1, 6, 1, 5, 4, 9, 9, (3, 3), (4, 4), (2, 2)),
        case("kernel_is_stride", 2, 3, 5, 3, 4, 3, 2, (3, 2)),
        case("stride_above_kernel", 2, 3, 4, 3, 2, 2, 3, (5, 4)),
        case("stride_above_kernel_op", 1, 2, 3, 2, 3, 1, 2, (4, 5), (0, 1), (3, 4)),
        case("dilated", 1, 3, 4, 5, 4, 3, 2, dilation=(2, 3)),
        case("dilated_op", 1, 2, 3, 4, 5, 2, 3, (1, 1), (1, 0), (1, 2), (2, 3)),
        case("dilation_above_map", 1, 2, 3, 3, 2, 2, 3, dilation=(7, 5)),
        # Stride and dilation together: coprime, sharing a factor, one a multiple.
        case("s2_d3", 1, 3, 2, 4, 5, 3, 2, (2, 2), (1, 2), (1, 0), (3, 3)),
        case("s4_d6", 1, 3, 2, 4, 3, 3, 3, (4, 4), dilation=(6, 6)),
        case("s6_d4_op5", 1, 2, 3, 3, 4, 3, 2, (6, 6), (3, 2), (5, 5), (4, 4)),
        case("s2_d2", 2, 3, 2, 4, 3, 3, 4, (2, 2), (1, 1), (1, 1), (2, 2)),
        case("s3_d2_mixed", 1, 2, 5, 3, 4, 4, 2, (3, 1), (2, 1), (0, 1), (1, 2)),
        # Padding.
        case("crop_to_pixel", 1, 2, 3, 3, 3, 3, 3, padding=(2, 2)),
        case("crop_above_kernel", 1, 3, 2, 7, 8, 2, 3, padding=(2, 3)),
        case("crop_low_negative", 1, 3, 2, 4, 3, 3, 2, padding=((-2, 1), (-1, 0))),
        case("crop_high_negative", 1, 2, 3, 3, 4, 2, 3, padding=((1, -3), (0, -2))),
        case(
            "crop_negative_strided",
            *(2, 3, 4, 3, 4, 3, 2, (2, 3), ((-3, -1), (-2, -4))),
        ),
        case(
            "crop_negative_dilated",
            *(1, 2, 3, 4, 3, 2, 3, (2, 1), ((-1, 2), (3, -2))),
            dilation=(3, 2),
        ),
        case(
            "crop_asymmetric",
            *(2, 4, 3, 5, 4, 4, 3, (2, 2), ((0, 3), (2, 1))),
        ),
        case("crop_beyond_taps", 1, 2, 2, 3, 3, 2, 2, padding=((-4, -5), (5, -8))),
        # Flat maps.
        case("h1", 2, 3, 4, 1, 9, 1, 4, (1, 2), (0, 1)),
        case("w1", 2, 4, 3, 9, 1, 4, 1, (2, 1), (1, 0)),
        case("h1_kernel_2d", 1, 3, 2, 1, 7, 3, 3, (2, 2), (1, 1), (1, 1)),
        case("out_h1", 1, 2, 3, 3, 5, 3, 2, (1, 2), (2, 0)),
        # Channels off every tile.
        case("channels_1_to_67", 1, 1, 67, 4, 5, 3, 3, (2, 2), (1, 1)),
        case("channels_67_to_1", 1, 67, 1, 4, 5, 3, 3, (2, 2), (1, 1)),
        case("channels_17_to_19", 2, 17, 19, 5, 4, 2, 3, (2, 1)),
        case("channels_33_to_31", 1, 33, 31, 3, 4, 3, 2, (1, 2)),
        case("channels_64_to_64", 1, 64, 64, 4, 4, 4, 4, (2, 2), (1, 1)),
        case("channels_65_to_66", 1, 65, 66, 3, 3, 2, 2, (2, 2)),
        case("channels_67_to_13", 2, 67, 13, 3, 5, 3, 3),
        # Maps off every tile.
        case("odd_map_37x41", 1, 3, 2, 37, 41, 3, 3, (2, 2), (1, 1), (1, 1)),
        case("odd_map_1x129", 1, 2, 3, 1, 129, 1, 5, (1, 2), (0, 2), (0, 1)),
        case("odd_map_131x2", 1, 3, 2, 131, 2, 5, 2, (2, 1), (2, 0), (1, 0)),
        case("batch_9", 9, 2, 3, 3, 2, 2, 3, (2, 2)),
        # Groups.
        case("groups2", 2, 4, 6, 5, 4, 3, 2, (2, 2), (1, 0), groups=2),
        case("groups3_uneven", 1, 9, 6, 4, 5, 2, 3, (1, 2), groups=3),
        case("groups_many_in_one_out", 2, 12, 4, 3, 4, 3, 3, (2, 1), groups=4),
        case("groups_dilated", 1, 6, 4, 4, 3, 3, 2, (2, 3), (1, 1), (1, 2), (3, 2), 2),
        case("groups_17_wide", 1, 34, 51, 3, 4, 2, 2, (2, 2), groups=17),
        case("depthwise", 2, 6, 6, 5, 4, 3, 3, (2, 2), (1, 1), groups=6),
        case("depthwise_37", 1, 37, 37, 4, 5, 4, 3, (2, 1), (1, 1), groups=37),
        case("depthwise_no_bias", 1, 5, 5, 3, 6, 2, 4, groups=5, bias=False),
        case(
            "depthwise_dilated", 1, 4, 4, 5, 4, 3, 3, (2, 3), dilation=(3, 2), groups=4
        ),
        case("depthwise_s3_k6", 1, 8, 8, 4, 5, 6, 6, (3, 3), (2, 2), (1, 1), groups=8),
        case("multiplier_3", 2, 4, 12, 5, 4, 3, 2, (2, 2), groups=4),
        case("multiplier_2_dilated", 1, 5, 10, 4, 3, 2, 3, dilation=(2, 1), groups=5),
        case(
            "depthwise_crop", 1, 3, 3, 4, 5, 3, 2, (2, 2), ((-1, 2), (1, -2)), groups=3
        ),
        # No examples.
        case("batch_0", 0, 3, 4, 5, 4, 3, 2, (2, 1)),
        case("batch_0_groups", 0, 4, 6, 3, 4, 3, 3, groups=2),
        case("batch_0_depthwise", 0, 4, 4, 3, 4, 3, 3, (2, 2), groups=4),
    ]
    rows += [
        # Where plain XLA on a CPU was seen to return garbage: one channel, a 1x1 map,
        # more than 32768 channels on the other side; and a negative low padding.
        case("xla_trap_outputs", 1, 1, 32769, 1, 1, 1, 1),
        case("xla_trap_inputs", 1, 32769, 1, 1, 1, 1, 1),
        case("xla_trap_padding", 1, 8, 8, 15, 9, 1, 2, (1, 1), (0, 6), (0, 4), (1, 5)),
        case("xla_trap_padding4", 2, 4, 4, 9, 15, 2, 1, (1, 1), (6, 0), (4, 0), (5, 1)),
    ]
    # The other dtypes and the other layout, over problems that differ in kind.
    kinds = (
        "stride2_k4_p1",
        "s6_d4_op5",
        "crop_negative_strided",
        "groups2",
        "depthwise",
        "multiplier_3",
        "channels_17_to_19",
        "stride_above_kernel_op",
        "batch_0",
    )
    by_name = {row.name: row for row in rows}
    assert len(by_name) == len(rows), "two cases share a name"
    for kind in kinds:
        base = by_name[kind]
        for dtype in DTYPES[1:]:
            rows.append(base.replace(name=f"{kind}-{dtype}", dtype=dtype))
        rows.append(base.replace(name=f"{kind}-NHWC", layout="NHWC"))
        rows.append(
            base.replace(name=f"{kind}-NHWC-bfloat16", layout="NHWC", dtype="bfloat16")
        )
    rows.append(
        by_name["depthwise_dilated"].replace(
            name="depthwise_dilated-NHWC", layout="NHWC"
        )
    )
    rows.append(
        by_name["channels_67_to_13"].replace(
            name="channels_67_to_13-NHWC-float16", layout="NHWC", dtype="float16"
        )
    )
    # Heads of three channels, whose rows fill no tile.
    head = Case("", 2, 40, 3, 6, 21, 5, 5, layout="NHWC", dtype="bfloat16")
    rows += [
        head.replace(name="head-NHWC-bfloat16", padding=(2, 2)),
        head.replace(
            name="head_stride2-NHWC-float16",
            n=3,
            cin=96,
            w=32,
            stride=(2, 2),
            padding=((1, 2), (1, 2)),
            dtype="float16",
        ),
        head.replace(
            name="head_k4-NHWC-bfloat16",
            cin=128,
            kh=4,
            kw=4,
            w=30,
            stride=(2, 2),
            padding=(1, 1),
        ),
    ]
    for row in rows:
        assert row.cin % row.groups == 0, row.name
        assert row.cout % row.groups == 0, row.name
        assert min(row.out_shape[1:]) > 0, row.name
    return tuple(rows)


TABLE = _table()

# Rows long enough for several strips of the kernels that walk down an image, cut at
# every alignment, with channels off their blocks; the tall ones give a block many rows.
# The first has channels so few that they run in every precision.
WIDE = (
    Case("wide", 2, 32, 24, 9, 201, 3, 3, padding=(1, 1)),
    Case("wide_few", 3, 24, 16, 61, 330, 3, 3, padding=(0, 1)),
    Case(
        "wide_few_groups", 2, 24, 96, 5, 300, 2, 4, (1, 1), ((0, 1), (2, -1)), groups=3
    ),
    Case("wide_many", 2, 40, 24, 9, 201, 3, 3, padding=(1, 1)),
    Case("wide_even", 1, 64, 72, 6, 256, 3, 3),
    Case("wide_flat_kernel", 2, 24, 64, 7, 130, 2, 5, padding=((1, -1), (2, 0))),
    Case("wide_row", 1, 8, 16, 1, 390, 1, 3, padding=(0, 1)),
    Case("wide_groups", 1, 48, 96, 5, 256, 3, 3, padding=(1, 1), groups=3),
    Case("wide_tall", 3, 16, 136, 61, 300, 3, 3, padding=(1, 1)),
    Case("wide_tall_back", 3, 136, 16, 61, 300, 3, 3, padding=(1, 1)),
    Case("wide_ragged", 2, 67, 75, 21, 200, 3, 3),
    Case("wide_blocks", 3, 40, 72, 9, 66, 2, 2, (2, 2)),
    Case("wide_columns", 2, 33, 300, 7, 20, 2, 2, (2, 2)),
    Case("wide_sum", 1, 520, 66, 5, 37, 4, 4, (4, 4)),
    Case("wide_halves", 1, 64, 80, 24, 5, 2, 1, (2, 1)),
    Case("wide_deep", 1, 80, 136, 5, 97, 5, 4, padding=((-1, 2), (3, -2))),
    Case("wide_far", 2, 72, 40, 1, 136, 1, 16, (1, 8), padding=((0, 0), (4, 4))),
    Case("wide_split", 1, 264, 140, 6, 32, 4, 4, (2, 2), (1, 1)),
)

# For the seams of the CPU's kernels: channels that are packed some at a time, tiles of
# several images, sums that stay vectors or are summed in the result.
PARTS = (
    Case("planes", 3, 40, 90, 5, 7, 5, 5, (5, 5)),
    Case("planes_last", 2, 70, 44, 6, 9, 4, 4, (4, 4), layout="NHWC"),
    Case("planes_groups", 2, 40, 150, 9, 21, 3, 4, (2, 3), (1, 0), groups=2),
    Case("planes_row", 1, 130, 60, 1, 150, 1, 16, (1, 8), padding=((0, 0), (4, 4))),
    Case("deep", 1, 24, 410, 5, 33, 2, 3, padding=(0, 1)),
    Case("panels", 2, 210, 33, 5, 18, 2, 2, (2, 2)),
    Case("panels_last", 1, 150, 40, 4, 21, 3, 3, (2, 2), (1, 1), layout="NHWC"),
    Case("lanes", 2, 52, 3, 9, 32, 5, 5, (2, 2), (1, 1)),
    Case("few_lanes", 3, 37, 2, 5, 16, 17, 17),
    Case("short_lanes", 9, 43, 1, 7, 10, 9, 9, (3, 3), ((4, 2), (4, 2))),
    Case("short_rows", 9, 24, 3, 7, 10, 5, 5, (2, 2)),
    Case("images", 9, 40, 24, 10, 10, 3, 3, padding=(1, 1)),
    Case("in_place", 2, 24, 40, 9, 32, 3, 3, padding=(1, 1), bias=False),
    Case("in_place_deep", 2, 24, 110, 9, 32, 4, 4, (2, 2), (1, 1)),
)


def _axis(draw, torch_form: bool):
    """size, kernel, stride, dilation, padding, output_padding; the result not empty."""
    size = draw(st.integers(1, 6))
    kernel = draw(st.integers(1, 5))
    stride = draw(st.integers(1, 4))
    dilation = draw(st.integers(1, 4))
    full = oracle.full_extent(size, kernel, stride, dilation)
    if torch_form:
        output_padding = draw(st.integers(0, max(stride, dilation) - 1))
        padding = draw(st.integers(0, (full + output_padding - 1) // 2))
        return size, kernel, stride, dilation, padding, output_padding
    lo = draw(st.integers(-4, full + 2))
    hi = draw(
        st.integers(-4, full - lo - 1) if full - lo > -3 else st.just(full - lo - 1)
    )
    return size, kernel, stride, dilation, (lo, hi), 0


@st.composite
def legal_cases(draw, dtype: str = "float64", torch_form: bool = True) -> Case:
    """Any small legal problem; with ``torch_form`` one that torch can be asked for."""
    h, w = _axis(draw, torch_form), _axis(draw, torch_form)
    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 5)))
    seed = draw(st.integers(0, 2**20))
    return Case(
        name=f"drawn{seed}",
        n=draw(st.integers(1, 3)),
        cin=groups * draw(st.integers(1, 4)),
        cout=groups * draw(st.integers(1, 4)),
        h=h[0],
        w=w[0],
        kh=h[1],
        kw=w[1],
        stride=(h[2], w[2]),
        dilation=(h[3], w[3]),
        padding=(h[4], w[4]),
        output_padding=(h[5], w[5]),
        groups=groups,
        bias=draw(st.booleans()),
        dtype=dtype,
        layout=draw(st.sampled_from(("NCHW", "NHWC"))),
    )


# --- running --------------------------------------------------------------------------


def devices(platform: str) -> list:
    """The devices of one platform ("cpu" or "cuda"); none is an empty list."""
    try:
        return jax.devices(platform)
    except RuntimeError:
        return []


def put(case: Case, data: Data, device=None) -> tuple:
    """x, weight, bias and dy as jax arrays in the layout of the case."""

    def move(array):
        return (
            None
            if array is None
            else jax.device_put(np.ascontiguousarray(array), device)
        )

    return (
        move(case.to_layout(data.x)),
        move(data.weight),
        move(data.bias),
        move(case.to_layout(data.dy)),
    )
