import json

import pytest

from benchmarks import shapes

FIELDS = {
    "id": "t",
    "n": 16,
    "cin": 32,
    "cout": 64,
    "h": 64,
    "w": 128,
    "kh": 3,
    "kw": 3,
    "stride": [5, 5],
    "padding": 1,
    "dilation": 2,
}


def test_parses_torch_arguments():
    layer = shapes.parse_layer(FIELDS)
    assert layer.crop == ((1, 1), (1, 1))
    assert layer.out_size == (318, 638)
    assert layer.x_shape == (16, 32, 64, 128)
    assert layer.y_shape == (16, 64, 318, 638)
    assert layer.w_shape == (32, 64, 3, 3)
    assert str(layer) == "n16 32>64 64x128 k3x3 s5 d2 crop1/1,1/1"


def test_crop_takes_the_place_of_padding():
    fields = FIELDS | {"crop_lo_hi": [[1, 2], [0, -3]], "layout": "NHWC"}
    layer = shapes.parse_layer(fields)
    assert layer.crop == ((1, 2), (0, -3))
    assert layer.y_shape == (16, 317, 643, 64)


def test_output_padding_lowers_the_high_crop():
    layer = shapes.parse_layer(FIELDS | {"output_padding": [1, 0]})
    assert layer.crop == ((1, 0), (1, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"oh": 319, "ow": 638}, r"layer t: output is \(318, 638\)"),
        ({"dtype": "int8"}, "unknown int8"),
        ({"layout": "CHWN"}, "unknown fp32 or CHWN"),
        ({"groups": 3}, "channels must divide"),
        ({"padding": 400}, "is empty"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        shapes.parse_layer(FIELDS | change)


def test_names_missing_fields():
    fields = {k: v for k, v in FIELDS.items() if k not in ("kh", "n")}
    with pytest.raises(ValueError, match="layer t: missing n, kh"):
        shapes.parse_layer(fields)


def test_every_layer_of_the_table_parses():
    layers = shapes.load_suite("all")
    assert len(layers) == 284
    assert len({layer.id for layer in layers}) == 284
    core = shapes.load_suite("core")
    assert len(core) == 101
    assert all(layer.core for layer in core)


def test_seeds():
    seeds = {layer.id: layer for layer in shapes.load_suite("seeds")}
    assert len(seeds) == 6
    assert seeds["kb-l1-57-main"].x_shape == (8, 64, 1024, 1024)
    layer = seeds["kb-l1-81-same"]
    assert (layer.stride, layer.dilation) == ((5, 5), (2, 2))
    assert layer.crop == ((1, 1), (1, 1))
    assert seeds["kb-l1-75-same"].groups == 4


def test_suite_from_a_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(["dcgan-0", FIELDS]))
    assert [layer.id for layer in shapes.load_suite(str(path))] == ["dcgan-0", "t"]
    path.write_text(json.dumps(["no-such-layer"]))
    with pytest.raises(ValueError, match="no layer 'no-such-layer'"):
        shapes.load_suite(str(path))
    with pytest.raises(ValueError, match="seeds, core, all or a file"):
        shapes.load_suite("nothing")


def test_select():
    layers = shapes.load_suite("seeds")
    assert [x.id for x in shapes.select(layers, "l1-(57|81)")] == [
        "kb-l1-57-main",
        "kb-l1-81-same",
    ]
    assert shapes.select(layers, None) == layers


def test_cut_keeps_what_decides_the_code():
    kept = ("id", "cin", "cout", "kernel", "stride", "dilation", "crop", "groups")
    for layer in shapes.load_suite("all"):
        small = shapes.cut_to(layer)
        assert all(getattr(small, k) == getattr(layer, k) for k in kept)
        assert min(small.out_size) >= 1
        assert bool(small.cut) == (small != layer)
        assert small.macs <= shapes.CPU_MACS or max(small.size) <= 4


def test_cut_takes_the_batch_first():
    layer = shapes.parse_layer(FIELDS)
    assert shapes.cut_to(layer, layer.macs) == layer
    assert shapes.cut_to(layer, layer.macs // 2).n == 8
    small = shapes.cut_to(layer, layer.macs // 64)
    assert (small.n, small.size, small.cut) == (1, (32, 64), "n1 32x64")


def test_variants():
    layer = shapes.parse_layer(FIELDS)
    assert shapes.variants(layer, ["own"], ["own"]) == [layer]
    found = shapes.variants(layer, ["own", "fp32", "bf16"], ["NCHW", "NHWC"])
    assert [(v.dtype, v.layout) for v in found] == [
        ("fp32", "NCHW"),
        ("fp32", "NHWC"),
        ("bf16", "NCHW"),
        ("bf16", "NHWC"),
    ]
