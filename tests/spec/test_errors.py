"""Every refusal: its type, what it names, and that it happens before any launch.

Each row is checked four times: called directly, while tracing under jit, through
`jax.eval_shape` with no array at all, and through `explain`. A check that sits in a
handler, or that needs a concrete array, fails one of them.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_transconv
from jax_transconv import conv_transpose2d

Shape = jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class Refusal:
    """One illegal call.

    Attributes:
      kwargs: Keyword arguments of the call.
      error: Exact exception type.
      words: Regular expressions that the message holds, in any order: the argument,
        and both values of the rule.
      x, weight, bias: Shapes; each may be a (shape, dtype) pair.
    """

    name: str
    kwargs: dict
    error: type[Exception]
    words: tuple[str, ...]
    x: tuple = (2, 4, 5, 6)
    weight: tuple = (4, 3, 3, 2)
    bias: tuple | None = None

    def __str__(self) -> str:
        return self.name

    def structs(self):
        def struct(shape):
            if shape is None:
                return None
            if shape and isinstance(shape[0], tuple):
                return Shape(shape[0], jnp.dtype(shape[1]))
            return Shape(shape, jnp.dtype("float32"))

        return tuple(struct(s) for s in (self.x, self.weight, self.bias))


V, T = ValueError, TypeError
REFUSALS = [
    # Rank and structure.
    Refusal("x_rank_2", {}, V, (r"\bx\b", "rank 2", r"\(4, 5\)"), x=(4, 5)),
    Refusal("x_rank_5", {}, V, (r"\bx\b", "rank 5", "4"), x=(2, 4, 5, 6, 7)),
    Refusal("x_scalar", {}, V, (r"\bx\b", "rank 0"), x=()),
    Refusal("weight_rank_3", {}, V, ("weight", "rank 3", "4"), weight=(4, 3, 3)),
    Refusal("weight_rank_5", {}, V, ("weight", "rank 5"), weight=(4, 3, 3, 2, 1)),
    Refusal("bias_rank_2", {}, V, ("bias", r"\(3,\)", r"\(1, 3\)"), bias=(1, 3)),
    # Channels and groups.
    Refusal("channels", {}, V, ("channels", r"\b5\b", r"\b4\b"), x=(2, 5, 5, 6)),
    Refusal("channels_unbatched", {}, V, ("channels", r"\b5\b", r"\b4\b"), x=(5, 5, 6)),
    Refusal(
        "channels_looks_nhwc",
        {},
        V,
        ("channels", r"\b5\b", r"\b4\b", "NHWC"),
        x=(2, 5, 6, 4),
    ),
    Refusal(
        "channels_looks_nchw",
        {"layout": "NHWC"},
        V,
        ("channels", r"\b6\b", r"\b4\b", "NCHW"),
    ),
    Refusal(
        "channels_layout_of_weight",
        {},
        V,
        (r"in_channels, out_channels ?// ?groups, kh, kw",),
        x=(1, 3, 4, 4),
        weight=(8, 3, 3, 3),
    ),
    Refusal("groups_not_dividing", {"groups": 3}, V, ("groups", r"\b3\b", r"\b4\b")),
    Refusal("groups_zero", {"groups": 0}, V, ("groups", r"\b0\b")),
    Refusal("groups_negative", {"groups": -2}, V, ("groups", "-2")),
    Refusal("groups_float", {"groups": 2.0}, T, ("groups", r"2\.0", "float")),
    Refusal("groups_bool", {"groups": True}, T, ("groups", "True")),
    Refusal("groups_pair", {"groups": (2, 2)}, T, ("groups", r"\(2, 2\)")),
    # Weight and bias shapes.
    Refusal(
        "no_out_channels", {}, V, ("weight", r"\(4, 0, 3, 2\)"), weight=(4, 0, 3, 2)
    ),
    Refusal("no_in_channels", {}, V, ("weight", "0"), (2, 0, 5, 6), (0, 3, 3, 2)),
    Refusal("empty_kernel", {}, V, ("weight", r"\(4, 3, 0, 2\)"), weight=(4, 3, 0, 2)),
    Refusal("bias_length", {}, V, ("bias", r"\(3,\)", r"\(4,\)"), bias=(4,)),
    Refusal(
        "bias_per_group",
        {"groups": 2},
        V,
        ("bias", r"\(6,\)", r"\(3,\)"),
        bias=(3,),
    ),
    Refusal("bias_scalar", {}, V, ("bias", r"\(3,\)", r"\(\)"), bias=()),
    # Stride and dilation.
    *(
        Refusal(f"{name}_{label}", {name: value}, V, (name, seen))
        for name in ("stride", "dilation")
        for label, value, seen in (
            ("zero", 0, r"\b0\b"),
            ("negative", -1, "-1"),
            ("zero_on_one_axis", (1, 0), r"width.*\b0\b"),
            ("negative_on_one_axis", (-3, 2), "height.*-3"),
        )
    ),
    *(
        Refusal(f"{name}_{label}", {name: value}, T, (name, *seen))
        for name in ("stride", "padding", "output_padding", "dilation")
        for label, value, seen in (
            ("float", 2.0, (r"2\.0", "float")),
            ("float_in_pair", (1, 2.5), (r"2\.5", "float")),
            ("numpy_float", np.float32(2), ("float32",)),
            ("three", (1, 1, 1), (r"\b3\b", r"\(1, 1, 1\)")),
            ("none_given", (), (r"\b0\b",)),
            ("none", None, ("None",)),
            ("bool", True, ("True",)),
            ("text_in_pair", ("1", 1), ("'1'", "str")),
        )
    ),
    Refusal("stride_text", {"stride": "2"}, T, ("stride", "'2'")),
    Refusal("stride_nested", {"stride": ((1, 1), (1, 1))}, T, ("stride",)),
    Refusal("stride_float_array", {"stride": np.ones(2)}, T, ("stride", "float")),
    Refusal("stride_bool_array", {"stride": np.array([True, True])}, T, ("stride",)),
    Refusal("stride_set", {"stride": {1, 2}}, T, ("stride",)),
    # Padding.
    Refusal("padding_negative", {"padding": -1}, V, ("padding", "-1", r"\(lo, hi\)")),
    Refusal(
        "padding_text", {"padding": "same"}, V, ("padding", "'same'", "SAME", "VALID")
    ),
    Refusal(
        "padding_circular", {"padding": "CIRCULAR"}, V, ("padding", "CIRCULAR", "SAME")
    ),
    Refusal(
        "padding_three_pairs", {"padding": ((0, 0),) * 3}, T, ("padding", r"\(lo, hi\)")
    ),
    Refusal("padding_triple", {"padding": ((0, 1, 2), (0, 1))}, T, ("padding",)),
    Refusal("padding_half_pair", {"padding": ((0, 1), 1)}, T, ("padding",)),
    Refusal(
        "padding_float_pair", {"padding": ((0, 1.5), (0, 1))}, T, ("padding", r"1\.5")
    ),
    # Output padding: torch's rule, with the axis and both bounds.
    Refusal(
        "output_padding_is_stride",
        {"output_padding": 1},
        V,
        ("output_padding", "output_padding=1", "stride=1", "dilation=1", "height"),
    ),
    Refusal(
        "output_padding_on_width",
        {"stride": (3, 2), "output_padding": (2, 2)},
        V,
        ("width", "output_padding=2", "stride=2", "dilation=1"),
    ),
    Refusal(
        "output_padding_is_both",
        {"stride": 2, "dilation": 3, "output_padding": 3},
        V,
        ("output_padding=3", "stride=2", "dilation=3"),
    ),
    Refusal(
        "output_padding_negative", {"output_padding": -1}, V, ("output_padding", "-1")
    ),
    Refusal(
        "output_padding_with_same",
        {"padding": "SAME", "stride": 2, "output_padding": 1},
        V,
        ("output_padding", "SAME"),
    ),
    # Output size: base is (5 - 1) * 2 + 3 = 11 high, (6 - 1) * 2 + 2 = 12 wide.
    Refusal(
        "output_size_above",
        {"stride": 2, "output_size": (13, 12)},
        V,
        ("output_size", r"\b13\b", r"\b11\b.*\b12\b", "height"),
    ),
    Refusal(
        "output_size_below",
        {"stride": 2, "output_size": (11, 11)},
        V,
        ("output_size", r"\b11\b", r"\b12\b.*\b13\b", "width"),
    ),
    Refusal(
        "output_size_three", {"output_size": (1, 7, 7)}, T, ("output_size", r"\b3\b")
    ),
    Refusal(
        "output_size_float", {"output_size": (7.0, 7)}, T, ("output_size", r"7\.0")
    ),
    Refusal(
        "output_size_and_padding",
        {"stride": 2, "output_size": (12, 12), "output_padding": 1},
        V,
        ("output_size", "output_padding", r"\(12, 12\)", "1"),
    ),
    # Empty in space.
    Refusal("output_empty", {"padding": 4}, V, ("output", "height", "-1", r"\b5\b")),
    Refusal(
        "output_width_zero",
        {"padding": ((0, 0), (3, 4))},
        V,
        ("output", "width", r"\b0\b", r"\b6\b"),
    ),
    Refusal("input_height_zero", {}, V, (r"\bx\b", "height", r"\b0\b"), x=(2, 4, 0, 6)),
    Refusal(
        "input_width_zero",
        {"layout": "NHWC"},
        V,
        (r"\bx\b", "width", r"\b0\b"),
        x=(2, 5, 0, 4),
    ),
    Refusal(
        "output_empty_without_batch",
        {"padding": 4},
        V,
        ("output", "height"),
        x=(0, 4, 5, 6),
    ),
    # Unknown words.
    Refusal("layout", {"layout": "NCWH"}, V, ("layout", "NCWH", "NCHW", "NHWC")),
    Refusal("layout_none", {"layout": None}, V, ("layout", "None", "NCHW")),
    Refusal("backend", {"backend": "metal"}, V, ("backend", "metal", "xla", "auto")),
    Refusal(
        "backend_row",
        {"backend": "xla:magic"},
        V,
        ("backend", "xla:magic", "xla:phases"),
    ),
    Refusal("precision", {"precision": "exact"}, V, ("precision", "exact", "highest")),
    Refusal("precision_number", {"precision": 3.5}, V, ("precision", r"3\.5")),
    Refusal(
        "autodiff",
        {"autodiff": "forward"},
        V,
        ("autodiff", "forward", "reverse", "both"),
    ),
    # Dtypes.
    *(
        Refusal(
            f"dtype_{dtype}",
            {},
            T,
            (r"\bx\b", dtype, "float32"),
            x=((2, 4, 5, 6), dtype),
            weight=((4, 3, 3, 2), dtype),
        )
        for dtype in ("int32", "int8", "uint8", "bool", "complex64", "complex128")
    ),
    Refusal("dtype_fp8", {}, T, ("float8_e4m3fn",), x=((2, 4, 5, 6), "float8_e4m3fn")),
    Refusal(
        "weight_integer", {}, T, ("weight", "int32"), weight=((4, 3, 3, 2), "int32")
    ),
    Refusal(
        "mixed_16_bit",
        {},
        T,
        ("weight", "bfloat16", "float32", r"astype\('?(float32|bfloat16)"),
        weight=((4, 3, 3, 2), "bfloat16"),
    ),
    Refusal(
        "mixed_wide",
        {},
        T,
        ("weight", "float64", "float32", "astype"),
        x=((2, 4, 5, 6), "float64"),
    ),
    Refusal(
        "mixed_bias",
        {},
        T,
        ("bias", "float16", "float32", "astype"),
        bias=((3,), "float16"),
    ),
    # Sizes. None of these arrays exists.
    Refusal("stride_overflow", {"stride": 2**31}, V, ("stride", str(2**31))),
    Refusal("stride_beyond_int64", {"stride": 2**63}, V, ("stride", str(2**63))),
    Refusal("dilation_overflow", {"dilation": 2**40}, V, ("dilation", str(2**40))),
    Refusal("padding_overflow", {"padding": 2**62}, V, ("padding", str(2**62))),
    Refusal(
        "crop_overflow",
        {"padding": ((0, -(2**62)), (0, 0))},
        V,
        ("padding", str(2**62)),
    ),
    Refusal(
        "output_elements",
        {"stride": 2**30},
        V,
        ("overflow|exceeds|too large", r"\d{10}"),
        x=(2**10, 4, 5, 6),
    ),
    Refusal(
        "output_bytes",
        {"stride": 2**28},
        V,
        ("overflow|exceeds|too large", r"\d{10}"),
        x=(2**8, 4, 5, 6),
        weight=(4, 2**12, 3, 2),
    ),
    Refusal(
        "output_extent",
        {"stride": (2**30, 1)},
        V,
        ("height", str(4 * 2**30 + 3)),
        x=(1, 4, 5, 1),
    ),
    Refusal(
        "output_bytes_of_no_example",
        {"stride": 2**29},
        V,
        ("overflow|exceeds|too large", r"\d{9}"),
        x=(0, 4, 4, 4),
        weight=(4, 2**20, 3, 2),
    ),
    Refusal(
        "weight_bytes",
        {"padding": 2**19},
        V,
        ("weight", "overflow|exceeds|too large"),
        x=(1, 2**20, 8, 8),
        weight=(2**20, 2**20, 2**20, 2**20),
    ),
    Refusal(
        "x_bytes",
        {},
        V,
        (r"\bx\b", "overflow|exceeds|too large"),
        x=(2**20, 2**20, 2**20, 2**20),
        weight=(2**20, 1, 1, 1),
    ),
    Refusal(
        "dilation_times_kernel",
        {"dilation": 2**30},
        V,
        ("overflow|exceeds|too large", r"\d{10}"),
        weight=(4, 3, 3, 3),
    ),
]
assert len({r.name for r in REFUSALS}) == len(REFUSALS)

_FORM = re.compile(r"conv_transpose2d: \S.*\.\s+Resolution: \S.*", re.DOTALL)


def check(refusal: Refusal, error: Exception) -> None:
    message = str(error)
    assert type(error) is refusal.error, f"{type(error).__name__}: {message}"
    assert _FORM.fullmatch(message), f"not in the form of our errors: {message}"
    for word in refusal.words:
        assert re.search(word, message, re.DOTALL), f"{word!r} is not in: {message}"


def bind(refusal: Refusal):
    return lambda x, w, b: conv_transpose2d(x, w, b, **refusal.kwargs)


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_refused_without_arrays(refusal):
    with pytest.raises((ValueError, TypeError)) as caught:
        jax.eval_shape(bind(refusal), *refusal.structs())
    check(refusal, caught.value)


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_refused_while_tracing(refusal):
    with pytest.raises((ValueError, TypeError)) as caught:
        jax.jit(bind(refusal)).trace(*refusal.structs())
    check(refusal, caught.value)


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_refused_by_explain(refusal, capsys):
    x, w, b = refusal.structs()
    with pytest.raises((ValueError, TypeError)) as caught:
        jax_transconv.explain(x, w, b, **refusal.kwargs)
    check(refusal, caught.value)
    assert capsys.readouterr().out == ""


def _small(refusal: Refusal) -> bool:
    return all(
        s is None or np.prod(s.shape, dtype=float) < 1e5 for s in refusal.structs()
    )


@pytest.mark.parametrize("refusal", [r for r in REFUSALS if _small(r)], ids=str)
@pytest.mark.parametrize("kind", [np.zeros, jnp.zeros], ids=["numpy", "jax"])
def test_refused_with_arrays(refusal, kind):
    arrays = [None if s is None else kind(s.shape, s.dtype) for s in refusal.structs()]
    with pytest.raises((ValueError, TypeError)) as caught:
        conv_transpose2d(*arrays, **refusal.kwargs)
    check(refusal, caught.value)


@pytest.mark.parametrize("refusal", [r for r in REFUSALS if _small(r)][::7], ids=str)
def test_refused_under_grad_and_vmap(refusal):
    x, w, b = (
        None if s is None else jnp.zeros((2, *s.shape), s.dtype)
        for s in refusal.structs()
    )
    with pytest.raises((ValueError, TypeError)) as caught:
        jax.vmap(bind(refusal), in_axes=(0, 0, None if b is None else 0))(x, w, b)
    check(refusal, caught.value)


# --- what the table cannot say --------------------------------------------------------

X = Shape((2, 4, 5, 6), jnp.dtype("float32"))
W = Shape((4, 3, 3, 2), jnp.dtype("float32"))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (name, form)
        for name in ("stride", "padding", "output_padding", "dilation")
        for form in ("int", "pair", "crop")
        if form != "crop" or name == "padding"
    ]
    + [("groups", "int"), ("output_size", "pair")],
)
def test_traced_argument(name, form):
    """A traced stride is a TypeError that says how to make it static."""
    forms = {
        "int": lambda v: v,
        "pair": lambda v: (7, v),
        "crop": lambda v: ((0, v), (0, 0)),
    }

    def call(x, w, value):
        return conv_transpose2d(x, w, **{name: forms[form](value)})

    with pytest.raises(TypeError) as caught:
        jax.eval_shape(call, X, W, Shape((), jnp.dtype("int32")))
    message = str(caught.value)
    assert type(caught.value) is TypeError, type(caught.value)
    assert _FORM.fullmatch(message), message
    for word in (name, "static", "traced"):
        assert word in message


def test_traced_array_argument():
    """A traced (2,) array is no better than a traced scalar."""

    def call(x, w, value):
        return conv_transpose2d(x, w, stride=value)

    with pytest.raises(TypeError) as caught:
        jax.eval_shape(call, X, W, Shape((2,), jnp.dtype("int32")))
    assert type(caught.value) is TypeError, type(caught.value)
    assert _FORM.fullmatch(str(caught.value)), str(caught.value)
    assert "stride" in str(caught.value)
    assert "static" in str(caught.value)


@pytest.mark.parametrize("which", ["weight", "bias", "both"])
def test_arrays_on_different_devices(which):
    """Two committed arrays on two devices: named, with both devices."""
    first, second = jax.devices("cpu")[:2]
    x = jax.device_put(jnp.zeros((1, 2, 3, 3), "float32"), first)
    w = jax.device_put(
        jnp.zeros((2, 3, 2, 2), "float32"), second if which != "bias" else first
    )
    b = jax.device_put(
        jnp.zeros((3,), "float32"), second if which != "weight" else first
    )
    with pytest.raises(ValueError, match="device_put") as caught:
        conv_transpose2d(x, w, b)
    message = str(caught.value)
    assert _FORM.fullmatch(message), message
    assert "weight" in message if which != "bias" else "bias" in message
    assert str(first) in message
    assert str(second) in message


def test_uncommitted_array_goes_along():
    """An array without a committed device follows the others, as anywhere in JAX."""
    device = jax.devices("cpu")[3]
    x = jax.device_put(np.ones((1, 2, 3, 3), np.float32), device)
    y = conv_transpose2d(x, np.ones((2, 3, 2, 2), np.float32))
    assert y.devices() == {device}


@pytest.mark.parametrize("value", [3, "image", None, [[1.0]], {}], ids=repr)
def test_not_an_array(value):
    """What is no array is a TypeError that names x."""
    with pytest.raises(TypeError) as caught:
        conv_transpose2d(value, np.zeros((4, 3, 3, 2), np.float32))
    message = str(caught.value)
    assert _FORM.fullmatch(message), message
    assert re.search(r"\bx\b", message), message


def test_weight_is_not_an_array():
    with pytest.raises(TypeError) as caught:
        conv_transpose2d(np.zeros((1, 4, 3, 2), np.float32), None)
    assert _FORM.fullmatch(str(caught.value)), str(caught.value)
    assert "weight" in str(caught.value)


def test_keyword_only():
    """torch and others order groups and dilation differently: no positional call."""
    x, w = np.zeros((2, 4, 5, 6), np.float32), np.zeros((4, 3, 3, 2), np.float32)
    with pytest.raises(TypeError, match="positional"):
        conv_transpose2d(x, w, None, 1)


def test_unknown_keyword():
    x, w = np.zeros((2, 4, 5, 6), np.float32), np.zeros((4, 3, 3, 2), np.float32)
    with pytest.raises(TypeError, match="strides"):
        conv_transpose2d(x, w, strides=2)


def test_backend_of_another_platform():
    """Rows of a platform that the arrays are not on say so; nothing falls back."""
    device = jax.devices("cpu")[0]
    x = jax.device_put(np.zeros((2, 4, 5, 6), np.float32), device)
    w = jax.device_put(np.zeros((4, 3, 3, 2), np.float32), device)
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        conv_transpose2d(x, w, backend="cuda").block_until_ready()
    assert "cuda" in str(caught.value)
    assert "Resolution:" in str(caught.value)


def test_a_refusal_leaves_the_process_well():
    """After every kind of refusal the next legal call is right."""
    for refusal in REFUSALS:
        with pytest.raises((ValueError, TypeError)):
            jax.eval_shape(bind(refusal), *refusal.structs())
    y = conv_transpose2d(
        np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 1, 1), np.float32)
    )
    np.testing.assert_array_equal(y, np.ones((1, 1, 2, 2)))
