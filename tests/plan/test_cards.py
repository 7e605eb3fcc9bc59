"""Every card gets rows that run on it. Facts are made up; no GPU is needed."""

import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

import jax_transconv
from jax_transconv import plan
from jax_transconv.ffi import targets
from jax_transconv.plan import candidates

PASSES = targets.PASSES
CC = pathlib.Path(__file__).parents[2] / "cc"
CARDS = {
    "T4": plan.DeviceFacts("cuda", (7, 5), 40, "Tesla T4"),
    "A100": plan.DeviceFacts("cuda", (8, 0), 108, "NVIDIA A100"),
    "RTX 3090": plan.DeviceFacts("cuda", (8, 6), 82, "NVIDIA GeForce RTX 3090"),
    "L4": plan.DeviceFacts("cuda", (8, 9), 58, "NVIDIA L4"),
    "H100": plan.DeviceFacts("cuda", (9, 0), 132, "NVIDIA H100"),
    "B200": plan.DeviceFacts("cuda", (10, 0), 148, "NVIDIA B200"),
    "RTX 5090": plan.DeviceFacts("cuda", (12, 0), 170, "NVIDIA GeForce RTX 5090"),
}
# Shapes of x and weight, and arguments.
FAMILIES = {
    "dense_3x3": ((8, 64, 128, 128), (64, 64, 3, 3), {"padding": 1}),
    "stride_2": ((8, 64, 32, 32), (64, 32, 4, 4), {"stride": 2, "padding": 1}),
    "depthwise": ((4, 21, 16, 16), (21, 1, 4, 4), {"stride": 2, "groups": 21}),
    "few_a_group": (
        *((2, 32, 32, 64), (32, 2, 3, 5)),
        {"stride": (2, 3), "dilation": (2, 1), "groups": 8},
    ),
    "many_a_group": ((8, 256, 64, 64), (256, 64, 3, 3), {"groups": 4}),
    "rgb_head": ((16, 56, 32, 32), (56, 3, 9, 9), {"stride": 3, "padding": 4}),
    "one_axis": ((2, 256, 1, 400), (256, 128, 1, 16), {"stride": (1, 8)}),
    "kernel_is_stride": ((4, 128, 32, 32), (128, 64, 2, 2), {"stride": 2}),
    "kernel_64x64": (
        *((1, 21, 16, 16), (21, 21, 64, 64)),
        {"stride": 32, "padding": 16},
    ),
    "channels_last": ((8, 64, 64, 64), (64, 64, 3, 3), {"layout": "NHWC"}),
    "no_example": ((0, 64, 64, 64), (64, 64, 3, 3), {}),
}
NUMBERS = [
    *(("float32", precision) for precision in ("default", "high", "highest")),
    *((dtype, None) for dtype in ("float64", "bfloat16", "float16")),
]


@pytest.fixture(params=CARDS.values(), ids=CARDS)
def card(request):
    return request.param


@functools.cache
def specs_of(family):
    """The family's problem in every dtype and precision."""
    x, weight, arguments = FAMILIES[family]
    if arguments.get("layout") == "NHWC":
        x = (x[0], *x[2:], x[1])
    return [
        jax_transconv.explain(
            jax.ShapeDtypeStruct(x, jnp.dtype(dtype)),
            jax.ShapeDtypeStruct(weight, jnp.dtype(dtype)),
            platform="cpu",
            precision=precision,
            **arguments,
        ).spec
        for dtype, precision in NUMBERS
    ]


@pytest.fixture(params=FAMILIES)
def family(request):
    return specs_of(request.param)


@pytest.fixture
def as_if_built(monkeypatch):
    """All native rows, for the default's cards; a module that is here may decline."""
    rows = {
        row.name: i for i, row in enumerate(plan.CANDIDATES) if row.backend != "xla"
    }
    if targets.module("cuda") is None:
        monkeypatch.setattr(targets, "algorithm_ids", lambda: rows)
        monkeypatch.setattr(targets, "unsupported", lambda row, pass_name, spec: None)
    monkeypatch.setattr(targets, "architectures", default_architectures)
    plan._choose.cache_clear()
    yield
    plan._choose.cache_clear()


def cmake():
    path = CC / "cmake" / "Cuda.cmake"
    if not path.exists():
        pytest.skip("the C++ sources are not beside the tests")
    return path.read_text()


def default_architectures():
    found = re.search(r"set\(CMAKE_CUDA_ARCHITECTURES \"(.*?)\"\)", cmake())
    return tuple(found[1].split(";"))


def libraries():
    """Sources and architectures of each library of kernels."""
    text = cmake()
    pattern = r"transconv_cuda_library\((\w+)\s+ARCHITECTURES (\S+)\s+SOURCES([^)]*)\)"
    return {
        name: (built, {pathlib.Path(s).name for s in sources.split()})
        for name, built, sources in re.findall(pattern, text)
    }


def runs_on(row: str, capability) -> bool:
    if row.startswith("cuda:sm90_"):
        return capability == (9, 0)
    if row.startswith("cuda:mma_"):
        return capability >= (8, 0)
    return row.startswith(("cuda:", "xla:"))


@pytest.mark.parametrize("backend", ["auto", "cuda"])
@pytest.mark.parametrize("pass_name", PASSES)
def test_the_chosen_row_runs(card, family, backend, pass_name, as_if_built):
    for spec in family:
        chosen = plan.choose(pass_name, spec, card, backend)
        if backend == "cuda" and spec.is_empty:
            assert chosen.row is None
            continue
        assert chosen.row is not None, spec
        assert runs_on(chosen.row, card.capability), (chosen.row, spec)
        assert backend == "auto" or chosen.row.startswith("cuda:")


@pytest.mark.parametrize("precision", ["default", "high", "highest"])
@pytest.mark.parametrize("pass_name", ["forward", "grad_input"])
def test_few_channels_roll_in_every_precision(pass_name, precision):
    """And more than 32 in one alone; the launcher answers without a GPU."""
    if targets.module("cuda") is None:
        pytest.skip("the native module for cuda was not built")
    for channels in (32, 40):
        spec = jax_transconv.explain(
            jax.ShapeDtypeStruct((8, channels, 512, 1024), jnp.dtype("float32")),
            jax.ShapeDtypeStruct((channels, 24, 3, 3), jnp.dtype("float32")),
            platform="cpu",
            precision=precision,
        ).spec
        chosen = plan.choose(pass_name, spec, CARDS["H100"])
        if channels == 32 or precision == "default":
            assert chosen.row == "cuda:sm90_rolling"
        else:
            assert "precision" in dict(chosen.verdicts)["cuda:sm90_rolling"]


@pytest.mark.parametrize("pass_name", PASSES)
def test_what_a_card_lacks_is_the_reason(card, family, pass_name, as_if_built):
    """Rows of other cards name the capability that they need, and this card's."""
    major, minor = card.capability
    for spec in family:
        if spec.is_empty:
            continue
        for name, reason in plan.choose(pass_name, spec, card).verdicts:
            if runs_on(name, card.capability) or not name.startswith("cuda:"):
                assert "compute capability" not in reason
                continue
            needed = "9.0" if name.startswith("cuda:sm90_") else "8.0"
            assert reason == (
                f"needs compute capability {needed}, got {major}.{minor}"
            ), name


def test_insisting_on_another_cards_row_fails(card, family, as_if_built):
    for row in plan.CANDIDATES:
        if runs_on(row.name, card.capability):
            continue
        for spec in family:
            for pass_name in row.passes:
                assert plan.choose(pass_name, spec, card, row.name).row is None


def test_the_default_build_has_code_for(card):
    """For its kernels of every card, and 8.0's for those from 8.0 on."""
    built = default_architectures()
    assert any(candidates._runs_on(a, card.capability) for a in built)
    later = [a for a in built if not a.startswith("75")]
    expected = card.capability >= (8, 0)
    assert any(candidates._runs_on(a, card.capability) for a in later) == expected


def test_libraries_of_kernels():
    """Hopper's sources for Hopper alone, mma's from 8.0 on, the rest for all cards."""
    listed = libraries()
    assert listed["transconv_cuda_sm90"][0] == "90a-real"
    assert listed["transconv_cuda_mma"][0] == "${transconv_mma_architectures}"
    assert listed["transconv_cuda_simt"][0] == "${CMAKE_CUDA_ARCHITECTURES}"
    sources = {p.name for p in (CC / "cuda" / "launch").glob("*.cu")}
    assert set().union(*(s for _, s in listed.values())) == sources
    assert sum(len(s) for _, s in listed.values()) == len(sources)
    for name in sources:
        kind = name.split("_")[0]
        library = kind if kind in ("sm90", "mma") else "simt"
        assert name in listed[f"transconv_cuda_{library}"][1]


@pytest.mark.parametrize(
    ("architecture", "runs"),
    [
        ("75-real", {(7, 5)}),
        ("80-real", {(8, 0), (8, 6), (8, 9)}),
        ("86", {(8, 6), (8, 9), (9, 0), (10, 0), (12, 0)}),
        ("90a-real", {(9, 0)}),
        ("90a", {(9, 0)}),
        ("90-virtual", {(9, 0), (10, 0), (12, 0)}),
        ("100f-real", {(10, 0)}),
        ("120", {(12, 0)}),
        ("native", {card.capability for card in CARDS.values()}),
    ],
)
def test_code_runs_on(architecture, runs):
    assert runs == {
        card.capability
        for card in CARDS.values()
        if candidates._runs_on(architecture, card.capability)
    }


def test_a_card_that_the_module_has_no_code_for(monkeypatch, as_if_built):
    """XLA serves it, and the explanation says for what the module was built."""
    monkeypatch.setattr(targets, "architectures", lambda: ("90a-real", "90-virtual"))
    spec = jax_transconv.explain(
        jax.ShapeDtypeStruct((2, 8, 5, 6), jnp.dtype("float32")),
        jax.ShapeDtypeStruct((8, 1, 3, 3), jnp.dtype("float32")),
        groups=8,
        platform="cpu",
    ).spec
    for name, card in CARDS.items():
        plan._choose.cache_clear()
        chosen = plan.choose("forward", spec, card)
        if card.capability >= (9, 0):
            assert chosen.row.startswith("cuda:"), name
            continue
        assert chosen.row.startswith("xla:"), name
        assert dict(chosen.verdicts)["cuda:simt"] == (
            "built for 90a-real, 90-virtual, the device has compute capability "
            "{}.{}".format(*card.capability)
        )


# Rows that were the fastest on an H200 (benchmarks/NOTES.md): shapes, arguments, dtype
# and the rows of the passes.
MEASURED = {
    "rgb_head_nhwc": (
        *((64, 30, 30, 32), (32, 3, 6, 6), {"stride": 2, "layout": "NHWC"}, "float32"),
        ("cuda:mma_im2col", "cuda:mma_im2col", "cuda:mma_im2col_wgrad"),
    ),
    "rgb_head_16_bit": (
        *((64, 32, 32, 96), (96, 3, 4, 4)),
        *({"stride": 2, "padding": 1, "layout": "NHWC"}, "bfloat16"),
        ("cuda:mma_im2col", "cuda:mma_im2col", "cuda:mma_im2col_wgrad"),
    ),
    "rgb_head_16_bit_odd_rows": (
        *((64, 31, 31, 96), (96, 3, 5, 5)),
        *({"padding": 2, "layout": "NHWC"}, "bfloat16"),
        ("cuda:mma_im2col", "cuda:mma_im2col", "xla:filter"),
    ),
    "flow_head": (
        *((1, 629, 28, 64), (629, 2, 4, 4), {"stride": 2, "padding": 1}, "float32"),
        ("cuda:direct", "cuda:mma_im2col", "cuda:mma_im2col_wgrad"),
    ),
    "few_positions": (
        *((4, 512, 1, 345), (512, 1, 1, 15), {"stride": (1, 4), "groups": 512}),
        "float32",
        ("cuda:direct", "cuda:direct", "cuda:direct_wgrad"),
    ),
    "kernel_is_stride": (
        *((4, 256, 62, 54), (256, 128, 4, 4), {"stride": 4}, "float32"),
        ("cuda:sm90_gemm", "cuda:sm90_gemm", "cuda:sm90_gemm_wgrad"),
    ),
    "kernel_is_stride_16_bit": (
        *((12, 512, 32, 32), (512, 256, 2, 2), {"stride": 2}, "float16"),
        ("cuda:sm90_gemm", "cuda:sm90_gemm", "cuda:sm90_gemm_wgrad"),
    ),
    "kernel_is_stride_16_bit_many": (
        *((1, 1024, 40, 59), (1024, 512, 2, 2), {"stride": 2}, "float16"),
        ("cuda:sm90_gemm", "cuda:sm90_gemm", "xla:filter"),
    ),
    "kernel_is_stride_16_bit_many_whole_rows": (
        *((1, 1024, 64, 64), (1024, 512, 2, 2), {"stride": 2}, "float16"),
        ("cuda:sm90_gemm", "cuda:sm90_gemm", "cuda:sm90_gemm_wgrad"),
    ),
    "kernel_is_stride_odd_image": (
        *((1, 512, 37, 37), (512, 512, 2, 2), {"stride": 2}, "float32"),
        ("cuda:sm90_gemm", "cuda:sm90_gemm", "cuda:sm90_gemm_wgrad"),
    ),
    "kernel_is_stride_odd_image_of_many_channels": (
        *((1, 1024, 37, 37), (1024, 1024, 2, 2), {"stride": 2}, "float32"),
        ("cuda:sm90_gemm", "cuda:sm90_gemm", "xla:filter"),
    ),
    "flow_of_two_channels": (
        *((8, 2, 24, 32), (2, 2, 4, 4), {"stride": 2, "padding": 1}, "float32"),
        ("cuda:direct", "cuda:direct", "cuda:mma_im2col_wgrad"),
    ),
    "few_positions_without_a_stride": (
        *((16, 32, 16, 32), (32, 64, 3, 5), {}, "float32"),
        ("xla:dilated", "cuda:sm90_lines", "cuda:sm90_lines_wgrad"),
    ),
    "lines_of_one_axis": (
        *((16, 128, 1, 2048), (128, 64, 1, 4)),
        *({"stride": (1, 2), "padding": (0, 1)}, "float32"),
        ("cuda:sm90_lines", "cuda:sm90_lines", "cuda:sm90_lines_wgrad"),
    ),
    "lines_of_one_axis_far_apart": (
        *((1, 256, 1, 6400), (256, 128, 1, 16)),
        *({"stride": (1, 8), "padding": (0, 4)}, "float32"),
        ("cuda:sm90_lines", "cuda:sm90_lines", "cuda:sm90_lines_wgrad"),
    ),
    "lines_of_a_small_image": (
        *((1, 256, 64, 64), (256, 128, 3, 3)),
        *({"stride": 2, "padding": 1, "output_padding": 1}, "float32"),
        ("cuda:sm90_lines", "cuda:sm90_lines", "cuda:sm90_lines_wgrad"),
    ),
    "lines_of_scores": (
        *((1, 21, 70, 70), (21, 21, 16, 16), {"stride": 8}, "float32"),
        ("cuda:sm90_lines", "cuda:direct", "cuda:mma_im2col_wgrad"),
    ),
    "lines_of_one_axis_that_are_not_packed": (
        *((2, 256, 1, 6400), (256, 128, 1, 16)),
        *({"stride": (1, 8), "padding": (0, 4)}, "float32"),
        ("cuda:sm90_lines", "cuda:sm90_lines", "cuda:sm90_lines_wgrad"),
    ),
    "few_pixels_that_are_not_packed": (
        *((8, 512, 16, 16), (512, 256, 4, 4), {"stride": 2, "padding": 1}, "float32"),
        ("cuda:sm90_lines", "xla:strided", "cuda:sm90_lines_wgrad"),
    ),
    "few_taps_without_a_stride": (
        *((16, 64, 128, 128), (64, 128, 1, 2), {}, "float32"),
        ("cuda:sm90_rolling", "cuda:sm90_tile", "cuda:sm90_wgrad_rolling"),
    ),
    "many_pixels": (
        *((8, 128, 128, 128), (128, 64, 4, 4), {"stride": 2, "padding": 1}),
        *("float32", ("cuda:sm90_tile", "cuda:sm90_tile", "cuda:sm90_wgrad_cells")),
    ),
    "many_channels_of_few_pixels": (
        *((1, 1024, 16, 16), (1024, 256, 4, 4), {"stride": 2, "padding": 1}),
        *("float32", ("cuda:sm90_lines", "xla:strided", "cuda:sm90_lines_wgrad")),
    ),
    "few_a_group": (
        *((16, 32, 128, 256), (32, 16, 3, 5)),
        *({"stride": (2, 3), "dilation": (2, 1), "padding": (1, 2), "groups": 4},),
        "float32",
        ("cuda:direct", "cuda:mma_im2col", "cuda:mma_im2col_wgrad"),
    ),
    "many_products": (
        *((128, 64, 64, 64), (64, 128, 4, 4), {"stride": 2}, "float32"),
        ("xla:dilated", "cuda:sm90_tile", "cuda:sm90_wgrad_cells"),
    ),
    "products_of_few_pixels": (
        *((4, 512, 32, 32), (512, 512, 3, 3), {"stride": 2}, "float32"),
        ("xla:dilated", "xla:strided", "cuda:sm90_wgrad_cells"),
    ),
    "few_products_without_a_stride": (
        *((16, 32, 128, 128), (32, 64, 3, 3), {}, "float32"),
        ("cuda:sm90_rolling", "cuda:sm90_rolling", "cuda:sm90_wgrad_cells"),
    ),
    "few_exact_products": (
        *((1, 256, 64, 64), (256, 128, 3, 3)),
        *({"stride": 2, "padding": 1, "output_padding": 1, "precision": "highest"},),
        "float32",
        ("cuda:sm90_tile", "cuda:sm90_lines", "cuda:sm90_wgrad_cells"),
    ),
    "exact_rows_that_no_tap_reads": (
        *((16, 32, 64, 128), (32, 64, 3, 3)),
        *({"stride": 5, "padding": 1, "dilation": 2, "precision": "highest"},),
        "float32",
        ("cuda:sm90_tile", "cuda:sm90_lines", "cuda:sm90_wgrad"),
    ),
    "exact_products_of_few_channels": (
        *((16, 64, 128, 128), (64, 128, 3, 3)),
        *({"stride": 2, "padding": 1, "output_padding": 1, "precision": "highest"},),
        "float32",
        ("cuda:sm90_tile", "cuda:sm90_tile", "cuda:sm90_wgrad"),
    ),
    "many_images_of_few_pixels": (
        *((64, 512, 4, 4), (512, 256, 4, 4), {"stride": 2, "padding": 1}, "float32"),
        ("xla:dilated", "xla:strided", "xla:filter"),
    ),
    "float64_dense": (
        *((64, 128, 16, 16), (128, 64, 4, 4), {"stride": 2, "padding": 1}, "float64"),
        ("cuda:mma_f64", "cuda:mma_f64", "cuda:mma_f64"),
    ),
    "float64_head": (
        *((64, 64, 32, 32), (64, 3, 4, 4), {"stride": 2, "padding": 1}, "float64"),
        ("cuda:direct", "cuda:mma_f64", "cuda:mma_f64"),
    ),
    "float64_few_tiles": (
        *((64, 100, 1, 1), (100, 512, 4, 4), {}, "float64"),
        ("cuda:mma_f64", "xla:strided", "cuda:mma_f64"),
    ),
    "float64_depthwise": (
        *((16, 64, 64, 64), (64, 1, 4, 4)),
        *({"stride": 2, "padding": 1, "groups": 64}, "float64"),
        ("cuda:direct", "cuda:direct", "cuda:direct_wgrad"),
    ),
    "float64_depthwise_no_columns": (
        *((16, 64, 64, 64), (64, 1, 4, 4)),
        *({"stride": 4, "groups": 64}, "float64"),
        ("cuda:direct", "xla:strided", "cuda:direct_wgrad"),
    ),
    "deep_on_few_pixels": (
        *((8, 1026, 12, 16), (1026, 256, 4, 4), {"stride": 2, "padding": 1}, "float32"),
        ("cuda:sm90_lines", "xla:strided", "cuda:sm90_wgrad_cells"),
    ),
    "depthwise": (
        *((16, 64, 64, 64), (64, 1, 4, 4)),
        *({"stride": 2, "padding": 1, "groups": 64}, "float32"),
        ("cuda:direct", "cuda:direct", "cuda:mma_im2col_wgrad"),
    ),
    "three_channels_in": (
        *((128, 3, 32, 32), (3, 16, 3, 3), {"stride": 2, "padding": 1}, "float32"),
        ("cuda:direct", "cuda:mma_im2col", "cuda:mma_im2col_wgrad"),
    ),
    "long_rows_16_bit": (
        *((8, 64, 512, 512), (64, 64, 3, 7), {}, "bfloat16"),
        ("cuda:sm90_tile", "cuda:sm90_tile", "cuda:sm90_wgrad_rolling"),
    ),
    "stride_2_16_bit": (
        *((32, 64, 64, 64), (64, 64, 4, 4), {"stride": 2, "padding": 1}, "bfloat16"),
        ("xla:dilated", "xla:strided", "xla:filter"),
    ),
    "stride_2_16_bit_many_taps": (
        *((512, 128, 16, 16), (128, 64, 5, 5), {"stride": 2, "padding": 2}, "bfloat16"),
        ("xla:dilated", "xla:strided", "cuda:sm90_wgrad_cells"),
    ),
    "dilated_16_bit": (
        *((16, 32, 64, 128), (32, 64, 3, 3)),
        *({"stride": 5, "padding": 1, "dilation": 2}, "bfloat16"),
        ("cuda:sm90_tile", "cuda:sm90_tile", "cuda:sm90_wgrad"),
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_auto_takes_what_was_fastest(name, as_if_built):
    if targets.module("cuda") is None:
        pytest.skip("the CUDA module, which declines what it cannot run, is not built")
    x, weight, arguments, dtype, rows = MEASURED[name]
    spec = jax_transconv.explain(
        jax.ShapeDtypeStruct(x, jnp.dtype(dtype)),
        jax.ShapeDtypeStruct(weight, jnp.dtype(dtype)),
        platform="cpu",
        **arguments,
    ).spec
    chosen = [plan.choose(p, spec, CARDS["H100"], "auto").row for p in PASSES]
    assert tuple(chosen) == rows
