import argparse
import json

import jax
import numpy as np
import pytest

from benchmarks import __main__ as cli
from benchmarks import scaling
from jax_transconv.ffi import targets

TINY = ("--platform", "cpu", "--devices", "8", "--batch", "8", "--channels", "2")
TINY += (
    "--size",
    "16",
    "--layers",
    "3:3:1:1,2:4:2:1",
    "--steps",
    "3",
    "--warm-up",
    "1",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("scaling") / "out.json"
    assert cli.main(["scaling", "--json", str(path), *TINY]) == 0
    return json.loads(path.read_text())


def test_every_row_agrees_with_one_device(found):
    rows = found["scaling"]
    assert [(r["cut"], r["scaling"], r["devices"]) for r in rows] == [
        ("", "", 1),
        ("batch", "strong", 8),
        ("batch", "weak", 8),
        ("height", "strong", 8),
        ("height", "weak", 8),
    ]
    assert {r["status"] for r in rows} == {"ok"}
    assert all(r["error"] < 1e-5 for r in rows[1:])
    one = rows[0]
    for r in rows[1:]:
        work = 8 if r["scaling"] == "weak" else 1
        assert r["speedup"] == pytest.approx(work * one["wall_ms"] / r["wall_ms"])
        assert r["efficiency"] == pytest.approx(r["speedup"] / 8)
        assert r["wall_count"] == 3
    assert rows[2]["shapes"] == "64x2x16x16 > 64x3x16x16 > 64x2x32x32"
    assert rows[4]["shapes"] == "8x2x128x16 > 8x3x128x16 > 8x2x256x32"


def test_exchanges(found):
    """Sums of gradients for both cuts, halos for one, and no image is gathered."""
    for r in found["scaling"]:
        kinds = {"": set(), "batch": {"all-reduce"}}.get(
            r["cut"], {"all-reduce", "collective-permute"}
        )
        assert set(r["collectives"]) == kinds
        assert r["gathered"] == 0
        if targets.module("cpu"):
            assert {k.split()[0] for k in r["kernels"]} >= {"forward", "grad_weight"}


def test_the_file_says_where_and_what(found):
    assert {"card", "commit", "versions", "date", "command"} <= set(found["machine"])
    assert len(found["devices"]) == 8
    assert found["decoder"]["layers"][1] == {
        "channels": 2,
        "kernel": 4,
        "stride": 2,
        "padding": 1,
    }


def test_one_device_is_a_baseline_alone(tmp_path, capsys):
    path = tmp_path / "one.json"
    assert cli.main(["scaling", "--json", str(path), *TINY, "--devices", "1"]) == 0
    assert len(json.loads(path.read_text())["scaling"]) == 1
    assert "nothing to compare it with" in capsys.readouterr().out


def test_what_is_wrong_is_said():
    devices = jax.devices("cpu")[:2]
    decoder = scaling.Decoder(2, 2, 8, 8, (scaling.Conv(2, 2, 2, 0),))
    options = scaling.Options(steps=1, warm_up=0)
    want = scaling.reference(decoder, devices[0], 2, options)
    row, got = scaling.measure(decoder, "batch", devices, options, want)
    assert (row["status"], row["reason"]) == ("ok", "")
    assert [np.shape(v) for v in got] == [(), (2, 2, 2, 2), (2,)]
    off = [v * 1.1 for v in want]
    row, _ = scaling.measure(decoder, "batch", devices, options, off)
    assert row["status"] == "wrong"
    assert "loss or gradients are off by" in row["reason"]
    lines = scaling.table(
        [{"cut": "batch", "scaling": "weak", "speedup": 1, **row} | {"efficiency": 0.5}]
    )
    assert "WRONG" in lines[1][-1]


def test_a_gathered_image_is_wrong():
    """A kernel that does not double the height: the op can't cut it in strips."""
    devices = jax.devices("cpu")[:2]
    decoder = scaling.Decoder(2, 2, 8, 8, (scaling.Conv(2, 3, 1, 0),))
    row, _ = scaling.measure(
        decoder, "height", devices, scaling.Options(steps=1, warm_up=0), None
    )
    assert row["status"] == "wrong"
    assert "is gathered" in row["reason"]


def test_collectives_of_both_forms():
    text = """
  %a = f32[4,8]{1,0} all-reduce(%x), channel_id=1
  %b = (f32[2,3]{1,0}, f32[4,3]{1,0}) all-gather-start(%y), dimensions={0}
  %c = f32[4,3]{1,0} all-gather-done(%b)
  %d = f32[2]{0} collective-permute(%z), channel_id=2
"""
    counts, largest = scaling.collectives(text)
    assert counts == {"all-gather": 1, "all-reduce": 1, "collective-permute": 1}
    assert largest == 12


def test_devices_that_do_not_divide(capsys):
    assert cli.main(["scaling", *TINY, "--batch", "6"]) == 2
    assert "8 devices do not divide a batch of 6" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "64:3:1", "64:3:one:1", "0:3:1:1"])
def test_layers_that_are_none(text):
    with pytest.raises(argparse.ArgumentTypeError, match="channels:kernel"):
        scaling.parse_layers(text)
