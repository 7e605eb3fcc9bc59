import dataclasses

import pytest

from benchmarks import floors, machine
from benchmarks.shapes import Layer, load_suite

KB81 = {x.id: x for x in load_suite("seeds")}["kb-l1-81-same"]
KB57 = {x.id: x for x in load_suite("seeds")}["kb-l1-57-main"]
RATES = {"fp32": 50.0, "tf32": 400.0, "bf16": 800.0, "fp16": 750.0, "fp64": 60.0}


def test_reach_of_a_stride_wider_than_the_kernel():
    used, hit, pairs = floors.axis_reach(64, 318, 3, 5, 2, 1)
    assert used == list(range(64))
    # Taps land on 5i - 1, 5i + 1, 5i + 3: two of five positions are never reached.
    assert all((o + 1) % 5 in (0, 2, 4) for o in hit)
    assert len(hit) == pairs == 64 * 3 - 2


def test_crop_cuts_pairs_and_inputs():
    used, hit, pairs = floors.axis_reach(5, 3, 1, 2, 1, 2)
    assert (used, hit, pairs) == ([1, 2], [0, 2], 2)


def test_stride_one_needs_everything_once():
    size, flops = floors.needed(KB57, "fwd")
    x, y, w = 8 * 64 * 1024**2 * 4, 8 * 64 * 1026**2 * 4, 64 * 64 * 9 * 4
    assert size == x + y + w
    assert flops == 2 * KB57.macs
    # A row of 1026 floats ends inside a sector, which belongs to the row after it, too.
    assert floors.needed(KB57, "dx") == (size, flops)
    assert floors.needed(KB57, "dw") == (size, flops)
    assert floors.needed(KB57, "fwdb")[0] == size + 64 * 4


def test_input_gradient_reads_only_what_the_taps_reach():
    forward, _ = floors.needed(KB81, "fwd")
    dx, flops = floors.needed(KB81, "dx")
    x, w = 16 * 32 * 64 * 128 * 4, 32 * 64 * 9 * 4
    y = 16 * 64 * 318 * 638 * 4
    assert forward == x + y + w
    # NCHW: 190 of 318 rows, but every sector of a row, for skips are inside sectors.
    assert dx == x + w + 16 * 64 * 190 * 638 * 4
    assert flops == 2 * 16 * 32 * 64 * (64 * 3 - 2) * (128 * 3 - 2)
    # NHWC: a pixel is 256 bytes, so columns that are skipped are saved as well.
    nhwc = dataclasses.replace(KB81, layout="NHWC")
    assert floors.needed(nhwc, "dx")[0] == x + w + 16 * 190 * 382 * 64 * 4
    # The bias gradient needs all of dy.
    assert floors.needed(KB81, "dwb")[0] == x + y + w + 64 * 4


def test_sectors_of_few_channels():
    layer = Layer("t", 1, 1, 2, (4, 4), (1, 1), stride=(8, 8), layout="NHWC")
    dx, _ = floors.needed(layer, "dx")
    # Reached pixels lie 64 bytes apart: a sector each, 4 rows of 4.
    assert dx == 16 * 4 + 2 * 4 + 4 * 4 * 32


def test_step_is_three_passes_that_share_dy():
    size, flops = floors.needed(KB57, "step")
    x, y, w = 8 * 64 * 1024**2 * 4, 8 * 64 * 1026**2 * 4, 64 * 64 * 9 * 4
    assert size == 3 * x + 2 * y + 3 * w + 2 * 64 * 4
    assert flops == 6 * KB57.macs


@pytest.mark.parametrize(
    ("dtype", "precision", "expected"),
    [
        ("fp32", "default", 800.0),
        ("fp32", "high", 800.0 / 3),
        ("fp32", "highest", 800.0 / 3),
        ("bf16", "default", 800.0),
        ("fp16", "default", 750.0),
        ("fp64", "default", 60.0),
    ],
)
def test_rate_of_a_class(dtype, precision, expected):
    assert floors.rate(dtype, precision, RATES) == expected


def test_rate_on_a_cpu():
    rates = {"fp32": 0.1, "fp64": 0.05}
    assert floors.rate("fp32", "default", rates) == 0.1
    assert floors.rate("fp32", "highest", rates) == 0.1
    assert floors.rate("bf16", "default", rates) == 0.1
    assert floors.rate("fp32", "default", {}) is None


def test_floor_is_the_larger_time():
    least = floors.floor(KB57, "fwd", "default", 3.0, RATES)
    assert least.memory_ms == pytest.approx(1.434, abs=0.001)
    assert least.compute_ms == pytest.approx(0.773, abs=0.001)
    assert least.ms == least.memory_ms
    strict = floors.floor(KB57, "fwd", "highest", 3.0, RATES)
    assert strict.ms == strict.compute_ms == pytest.approx(2.319, abs=0.001)
    assert floors.floor(KB57, "fwd", "default", None, {}).ms is None


def test_ceilings_of_several_runs():
    old = {"copy_tb_s": 3.0, "tflops": {"fp32": 50.0, "fp64": None}, "by": "torch"}
    new = {"copy_tb_s": 2.0, "tflops": {"fp32": 51.0, "tf32": 400.0}, "by": "torch"}
    merged = machine.highest(old, new)
    assert merged["copy_tb_s"] == 3.0
    assert merged["tflops"] == {"fp32": 51.0, "fp64": None, "tf32": 400.0}
    assert machine.highest(None, new) is new
