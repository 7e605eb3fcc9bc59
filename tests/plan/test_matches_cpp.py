"""What Python and C++ both spell: attributes, enumerations, algorithm ids, scratch."""

import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

import jax_transconv
from jax_transconv import plan
from jax_transconv.ffi import targets
from jax_transconv.spec import DTYPES, LAYOUTS, Precision

CC = pathlib.Path(__file__).parents[2] / "cc"
NATIVE = [row for row in plan.CANDIDATES if row.backend != "xla"]


def source(name: str) -> str:
    path = CC / name
    if not path.exists():
        pytest.skip("the C++ sources are not beside the tests")
    return path.read_text()


def spec_of(**kwargs):
    return jax_transconv.explain(
        jax.ShapeDtypeStruct((2, 8, 5, 6), jnp.dtype("float32")),
        jax.ShapeDtypeStruct((8, 4, 3, 2), jnp.dtype("float32")),
        platform="cpu",
        **kwargs,
    ).spec


def test_attributes():
    """Names and types of the struct attribute, in both places."""
    text = source("ffi/attrs.h")
    members = re.findall(r"StructMember<(\w+)>\(\"(\w+)\"\)", text)
    attrs = spec_of(stride=(2, 3), padding=((1, -2), (0, 4))).to_attrs()
    assert list(attrs) == [name for _, name in members]
    for kind, name in members:
        assert (
            type(attrs[name]).__name__ == {"int64_t": "int", "int32_t": "int32"}[kind]
        )
    fields = re.search(r"struct GeometryAttrs \{(.*?)\};", text, re.DOTALL)[1]
    declared = re.sub(r"//.*|int\d+_t", "", fields)
    assert re.findall(r"\w+", declared) == list(attrs)


def test_attribute_values():
    attrs = spec_of(
        stride=(2, 3),
        dilation=(4, 5),
        padding=((1, -2), (0, 4)),
        groups=2,
        layout="NCHW",
        precision="high",
    ).to_attrs()
    assert {k: int(v) for k, v in attrs.items()} == {
        "stride_h": 2,
        "stride_w": 3,
        "dilation_h": 4,
        "dilation_w": 5,
        "crop_lo_h": 1,
        "crop_hi_h": -2,
        "crop_lo_w": 0,
        "crop_hi_w": 4,
        "groups": 2,
        "layout": 0,
        "precision": 1,
    }


def test_enumerations():
    text = source("core/geometry.h")
    layouts = re.search(r"enum class Layout[^{]*\{([^}]*)\}", text)[1]
    assert re.findall(r"k(\w+) = (\d+)", layouts) == [
        (name, str(i)) for i, name in enumerate(LAYOUTS)
    ]
    precisions = re.search(r"enum class Precision[^{]*\{([^}]*)\}", text)[1]
    assert [
        (n.upper(), int(i)) for n, i in re.findall(r"k(\w+) = (\d+)", precisions)
    ] == [(p.name, int(p)) for p in Precision]
    passes = re.search(r"enum class Pass[^{]*\{([^}]*)\}", text)[1]
    found = [
        (re.sub(r"(?<!^)(?=[A-Z])", "_", n).lower(), int(i))
        for n, i in re.findall(r"k(\w+) = (\d+)", passes)
    ]
    assert found == [(name, i) for i, name in enumerate(targets.PASSES)]


def test_dtypes():
    assert set(targets._DTYPE_IDS) == set(DTYPES)
    text = source("core/dtypes.h")
    found = dict(re.findall(r"k(F16|BF16|F32|F64)\s*=\s*(\d+)", text))
    names = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
    assert {n: int(found[names[n]]) for n in DTYPES} == targets._DTYPE_IDS


def test_algorithms_of_the_table():
    """One line of algorithms.def for each native row, and no other."""
    text = source("core/algorithms.def")
    listed = re.findall(
        r"^TRANSCONV_(?:CUDA_)?ALGORITHM\(\w+, (\d+), \"([\w:]+)\"\)", text, re.M
    )
    assert len({i for i, _ in listed}) == len(listed)
    assert {name for _, name in listed} == {row.name for row in NATIVE}
    ids = {name: int(i) for i, name in listed}
    for name, algorithm in targets.algorithm_ids().items():
        assert ids[name] == algorithm


@pytest.mark.parametrize("row", NATIVE, ids=lambda row: row.name)
@pytest.mark.parametrize("pass_name", targets.PASSES)
def test_workspace_is_a_size(row, pass_name):
    """Scratch is known without a device, never negative, and near the arrays."""
    if targets.module(row.backend) is None:
        pytest.skip(f"the module for {row.backend} was not built")
    spec = spec_of(stride=2)
    if row.supports(pass_name, spec, plan.DeviceFacts(row.backend)) is not None:
        pytest.skip("this row declines the problem")
    size = targets.workspace_bytes(row.name, pass_name, spec)
    assert isinstance(size, int)
    assert 0 <= size < 2**24
