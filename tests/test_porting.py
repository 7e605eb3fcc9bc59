"""Porting: values against torch, Keras' and ONNX's own definitions, and errors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_transconv import conv_transpose1d, conv_transpose2d, porting

# -- Kernels. --


@pytest.mark.flax
@pytest.mark.torch
@pytest.mark.parametrize("transpose_kernel", [False, True])
@pytest.mark.parametrize("kernel", [(3,), (3, 2)])
def test_a_torch_weight_in_flaxs_layer(transpose_kernel, kernel, rng):
    import torch
    from flax import linen

    module = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d)[len(kernel) - 1]
    theirs = module(4, 5, kernel, stride=2).double()
    size = (6, 5)[: len(kernel)]
    x = rng.standard_normal((2, 4, *size))
    want = np.moveaxis(theirs(torch.tensor(x)).detach().numpy(), 1, -1)

    layer = linen.ConvTranspose(
        5,
        kernel,
        (2,) * len(kernel),
        "VALID",
        transpose_kernel=transpose_kernel,
        dtype=jnp.float64,
    )
    weight = porting.flax_kernel(theirs.weight, transpose_kernel=transpose_kernel)
    params = {"kernel": jnp.asarray(weight), "bias": jnp.asarray(theirs.bias.detach())}
    y = layer.apply({"params": params}, jnp.moveaxis(jnp.asarray(x), 1, -1))
    oracle.assert_same(y, want, "float64", 30)
    back = porting.torch_weight(weight, transpose_kernel=transpose_kernel)
    np.testing.assert_array_equal(back, theirs.weight.detach().numpy())


@pytest.mark.parametrize(
    ("function", "shape", "message"),
    [
        ("flax_kernel", (3, 8), "weight must be (C_in, C_out, *kernel_size)"),
        ("flax_kernel", (3, 8, 1, 1, 1, 1), "with 1 to 3 spatial axes, got shape (3,"),
        ("torch_weight", (3, 8), "kernel must be (*kernel_size, C_in, C_out)"),
        ("keras_weight", (8,), "kernel must be (*kernel_size, C_out, C_in)"),
        ("keras_weight", (2, 2, 2, 8, 3), "1 to 2 spatial axes, got shape (2, 2, 2,"),
    ],
)
def test_rank_of_a_kernel(function, shape, message):
    words = rf"^{function}: .*{re.escape(message)}.*\nResolution: "
    with pytest.raises(ValueError, match=words):
        getattr(porting, function)(np.ones(shape))
    with pytest.raises(ValueError, match=re.escape("(*kernel_size, C_out, C_in)")):
        porting.torch_weight(np.ones(3), transpose_kernel=True)


# -- Keras: the layer is the transpose of a forward convolution with TF's padding. --

KERAS_AXIS = st.tuples(
    st.integers(1, 5),  # size
    st.integers(1, 5),  # kernel
    st.integers(1, 4),  # stride
    st.integers(1, 2),  # dilation
)


def transpose_of_convolution(x, kernel, stride, dilation, out, front):
    """The gradient of a convolution of an image of size `out`, padded in front.

    `x` (N, H, W, I) is its output, `kernel` is (kh, kw, O, I): conv2d_transpose as
    TensorFlow defines it, written as the sum of what each output reads.
    """
    y = np.zeros((x.shape[0], *out, kernel.shape[2]))
    for i in np.ndindex(*x.shape[1:3]):
        for k in np.ndindex(*kernel.shape[:2]):
            at = [i[a] * stride[a] + k[a] * dilation[a] - front[a] for a in range(2)]
            if all(0 <= p < n for p, n in zip(at, out, strict=True)):
                y[:, at[0], at[1]] += x[:, i[0], i[1]] @ kernel[k].T
    return y


@given(KERAS_AXIS, KERAS_AXIS, st.sampled_from(["valid", "same"]), st.booleans())
def test_keras(h, w, padding, last):
    size, kernel, stride, dilation = zip(h, w, strict=True)
    rng = np.random.default_rng([*size, *kernel])
    x = rng.standard_normal((2, *size, 3))
    k = rng.standard_normal((*kernel, 4, 3))
    out, front = [], []
    for n, e_k, s, d in zip(size, kernel, stride, dilation, strict=True):
        e = d * (e_k - 1) + 1
        length = n * s if padding == "same" else n * s + max(e - s, 0)
        # TF pads an image of this length so that a window starts at every stride.
        total = max((-(-length // s) - 1) * s + e - length, 0)
        out.append(length)
        front.append(total // 2 if padding == "same" else 0)
    want = transpose_of_convolution(x, k, stride, dilation, out, front)
    got = conv_transpose2d(
        x if last else np.moveaxis(x, 3, 1),
        porting.keras_weight(k),
        **porting.keras_arguments(
            kernel,
            strides=stride,
            padding=padding,
            dilation_rate=dilation,
            data_format="channels_last" if last else "channels_first",
        ),
    )
    got = got if last else jnp.moveaxis(got, 1, 3)
    assert got.shape == want.shape
    oracle.assert_same(got, want, "float64", 100)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "added", "crop", "length"),
    [
        # Lengths by Keras' rule, (5 - 1) * stride + e % 2 + added for "same".
        (3, 2, "same", 1, (0, 1), 10),
        (3, 2, "same", 0, (1, 1), 9),
        (4, 2, "same", 1, (1, 2), 9),
        (4, 3, "same", 2, (1, 1), 14),
        (1, 3, "same", 2, (0, -2), 15),
        (4, 3, "valid", 2, (0, -2), 18),
        (2, 3, "valid", None, (0, -1), 15),
    ],
)
def test_keras_output_padding(kernel, stride, padding, added, crop, length):
    arguments = porting.keras_arguments(
        [kernel], strides=stride, padding=padding, output_padding=added
    )
    assert arguments["padding"] == (crop,)
    x, k = np.ones((1, 5, 1)), np.ones((kernel, 1, 1))
    y = conv_transpose1d(x, porting.keras_weight(k), **arguments)
    assert y.shape == (1, length, 1)


# -- ONNX: its document's formulas, and the scatter that it describes. --

ONNX_AXIS = st.tuples(
    st.integers(1, 5),  # size
    st.integers(1, 4),  # kernel
    st.integers(1, 3),  # stride
    st.integers(1, 2),  # dilation
    st.integers(0, 2),  # pad at the beginning
    st.integers(0, 2),  # at the end
    st.integers(0, 1),  # output padding
)


def onnx_result(x, w, out, begin, stride, dilation):
    y = np.zeros((x.shape[0], w.shape[1], *out))
    for i in np.ndindex(*x.shape[2:]):
        for k in np.ndindex(*w.shape[2:]):
            at = [i[a] * stride[a] + k[a] * dilation[a] - begin[a] for a in range(2)]
            if all(0 <= p < n for p, n in zip(at, out, strict=True)):
                y[:, :, at[0], at[1]] += x[:, :, i[0], i[1]] @ w[:, :, k[0], k[1]]
    return y


@given(
    ONNX_AXIS,
    ONNX_AXIS,
    st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "size", "upper"]),
)
def test_onnx(h, w, mode):
    size, kernel, stride, dilation, begin, end, added = zip(h, w, strict=True)
    # It has to be below the stride or the dilation.
    limits = zip(added, stride, dilation, strict=True)
    added = tuple(min(o, max(s, d) - 1) for o, s, d in limits)
    rng = np.random.default_rng([*size, *kernel])
    x = rng.standard_normal((2, 3, *size))
    weight = rng.standard_normal((3, 4, *kernel))
    full = [
        s * (n - 1) + o + (k - 1) * d + 1
        for n, k, s, d, o in zip(size, kernel, stride, dilation, added, strict=True)
    ]
    attributes = {"strides": stride, "dilations": dilation, "output_padding": added}
    if mode in ("NOTSET", "VALID"):
        begin, end = (begin, end) if mode == "NOTSET" else ((0, 0), (0, 0))
        attributes |= {"auto_pad": mode, "pads": (*begin, *end)}
        out = [f - b - e for f, b, e in zip(full, begin, end, strict=True)]
        if min(out) < 1:
            return
    else:
        # Larger than the whole is filled up at the end.
        out = [n * s for n, s in zip(size, stride, strict=True)]
        upper = mode in ("SAME_UPPER", "upper")
        if mode in ("size", "upper"):
            attributes["output_shape"] = out
            attributes["auto_pad"] = b"SAME_UPPER" if upper else "NOTSET"
        else:
            attributes["auto_pad"] = mode
        total = [max(f - o, 0) for f, o in zip(full, out, strict=True)]
        begin = [t // 2 if upper else t - t // 2 for t in total]
    want = onnx_result(x, weight, out, begin, stride, dilation)
    arguments = porting.onnx_arguments(x.shape, weight.shape, **attributes)
    got = conv_transpose2d(x, weight, **arguments)
    assert got.shape == want.shape
    oracle.assert_same(got, want, "float64", 100)


def test_onnx_groups_and_one_axis(rng):
    x, w = rng.standard_normal((1, 4, 5)), rng.standard_normal((4, 3, 2))
    arguments = porting.onnx_arguments(
        x.shape, w.shape, group=2, pads=[1, 0], kernel_shape=[2], output_shape=None
    )
    assert arguments == {
        "stride": (1,),
        "padding": ((1, 0),),
        "dilation": (1,),
        "groups": 2,
    }
    assert conv_transpose1d(x, w, **arguments).shape == (1, 6, 5)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"auto_pad": "SAME"},
            "auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID, got 'SAME'",
        ),
        ({"kernel_shape": [2, 2]}, "got (2, 2) and (3, 4, 3, 3)"),
        (
            {"auto_pad": "VALID", "pads": [1, 0, 0, 0]},
            "pads and auto_pad exclude each other, got [1, 0, 0, 0] and VALID",
        ),
        ({"strides": [2]}, "strides must have 2 values for this kernel, got 1: (2,)"),
        ({"pads": [1, 1]}, "pads must have 4 values for this kernel, got 2: (1, 1)"),
        ({"pads": [0, 1, 0, -1]}, "pads must be at least 0, got (0, 1, 0, -1)"),
        ({"strides": [2, -1]}, "strides must be at least 1, got (2, -1)"),
        ({"dilations": [0, 1]}, "dilations must be at least 1, got (0, 1)"),
        ({"strides": [1.5, 1]}, "strides must be integers, got [1.5, 1]"),
        ({"group": 0}, "group must be at least 1, got (0,)"),
        ({"group": 2}, "got (1, 3, 5, 5) and (3, 4, 3, 3) with group 2"),
        ({"output_padding": [-1, 0]}, "output_padding must be at least 0, got (-1, 0)"),
        (
            {"output_padding": [1, 2], "strides": [2, 2], "dilations": [1, 2]},
            "output_padding must be less than strides or dilations on each axis, got "
            "output_padding (1, 2), strides (2, 2) and dilations (1, 2)",
        ),
        ({"output_shape": [9]}, "output_shape must have the 2 spatial axes or all 4"),
        ({"output_shape": [9, 0]}, "output_shape must be at least 1, got (9, 0)"),
    ],
)
def test_onnx_errors(attributes, message):
    with pytest.raises(ValueError, match=re.escape(message) + r".*\nResolution: "):
        porting.onnx_arguments((1, 3, 5, 5), (3, 4, 3, 3), **attributes)


def test_onnx_channels():
    with pytest.raises(ValueError, match=r"got \(1, 2, 5, 5\) and \(3, 4, 3, 3\) with"):
        porting.onnx_arguments((1, 2, 5, 5), (3, 4, 3, 3))


def test_onnx_output_padding_up_to_the_dilation():
    """Below the larger of both, as in PyTorch."""
    x, w = np.ones((1, 3, 5, 5)), np.ones((3, 4, 3, 3))
    arguments = porting.onnx_arguments(
        x.shape, w.shape, dilations=[3, 1], output_padding=[2, 0]
    )
    assert conv_transpose2d(x, w, **arguments).shape == (1, 4, 13, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding": "SAME"}, "got 'SAME' and 'channels_last'"),
        ({"data_format": "NHWC"}, "got 'valid' and 'NHWC'"),
        ({"kernel_size": (3, 3, 3)}, "must have one or two axes, got (3, 3, 3)"),
        ({"kernel_size": (3, 0)}, "kernel_size must be at least 1, got (3, 0)"),
        ({"strides": -2}, "strides must be at least 1, got (-2, -2)"),
        ({"strides": "2"}, "strides must be integers, got '2'"),
        ({"dilation_rate": 0}, "dilation_rate must be at least 1, got (0, 0)"),
        ({"output_padding": -1}, "output_padding must be at least 0, got (-1, -1)"),
        (
            {"output_padding": (1, 2), "strides": 2},
            "output_padding must be less than strides on each axis, got output_padding "
            "(1, 2) and strides (2, 2)",
        ),
    ],
)
def test_keras_errors(arguments, message):
    arguments = {"kernel_size": (3, 3), **arguments}
    with pytest.raises(ValueError, match=re.escape(message) + r".*\nResolution: "):
        porting.keras_arguments(**arguments)


def test_integers_of_numpy():
    two = np.int64(2)
    assert porting.keras_arguments(two, strides=two) == porting.keras_arguments(
        (2, 2), strides=(2, 2)
    )


# -- Whole models. --


def torch_model():
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1),
        nn.BatchNorm2d(8),
        nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 3, padding=1, groups=2),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, 5),
    ).double()
    with torch.no_grad():  # statistics and scales that show
        for p in (*model[1].parameters(), *model[1].buffers()):
            if p.is_floating_point():
                p.uniform_(0.5, 1.5).copy_(p.float())  # Flax's statistics are float32
    return model.eval()


LAYERS = {
    "down": porting.conv("0"),
    "norm": porting.norm("1"),
    "up": porting.conv_transpose("2"),
    "grouped": porting.conv_transpose2d("4"),
    "head": porting.dense("6"),
}
DOUBLE = {"dtype": jnp.float64, "param_dtype": jnp.float64}


def linen_model():
    from flax import linen

    from jax_transconv.nn import linen as ours

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.Conv(8, (3, 3), 2, ((1, 1), (1, 1)), name="down", **DOUBLE)(x)
            x = linen.BatchNorm(True, name="norm", **DOUBLE)(x)
            x = ours.ConvTranspose(
                6, (4, 4), (2, 2), ((2, 2), (2, 2)), name="up", **DOUBLE
            )(x)
            x = linen.relu(x)
            x = ours.ConvTranspose2d(
                4, 3, padding=1, groups=2, name="grouped", **DOUBLE
            )(x)
            x = jnp.moveaxis(x, -1, 1).reshape(x.shape[0], -1)  # torch's order
            return linen.Dense(5, name="head", **DOUBLE)(x)

    return Model()


def nnx_model():
    from flax import nnx

    from jax_transconv.nn import nnx as ours

    class Model(nnx.Module):
        def __init__(self, rngs):
            rest = {**DOUBLE, "rngs": rngs}
            self.down = nnx.Conv(3, 8, (3, 3), 2, padding=((1, 1), (1, 1)), **rest)
            self.norm = nnx.BatchNorm(8, use_running_average=True, **rest)
            self.up = ours.ConvTranspose(
                8, 6, (4, 4), (2, 2), padding=((2, 2), (2, 2)), **rest
            )
            self.grouped = ours.ConvTranspose2d(6, 4, 3, padding=1, groups=2, **rest)
            self.head = nnx.Linear(256, 5, **rest)

        def __call__(self, x):
            x = nnx.relu(self.up(self.norm(self.down(x))))
            x = jnp.moveaxis(self.grouped(x), -1, 1)
            return self.head(x.reshape(x.shape[0], -1))

    return Model(nnx.Rngs(0))


@pytest.fixture
def image(rng):
    return jnp.asarray(rng.standard_normal((2, 8, 8, 3)))


def torch_result(model, image):
    import torch

    return model(torch.tensor(np.moveaxis(np.asarray(image), -1, 1))).detach().numpy()


@pytest.mark.torch
@pytest.mark.flax
def test_a_whole_linen_model(image):
    theirs, model = torch_model(), linen_model()
    with jax.numpy_dtype_promotion("standard"):
        like = jax.eval_shape(model.init, jax.random.key(0), image)
    # Flax's statistics are float32, and so would be what it computes with them.
    like = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, jnp.float64), like)
    variables = porting.to_flax(theirs.state_dict(), LAYERS, like)
    assert jax.tree.structure(variables) == jax.tree.structure(like)
    with jax.numpy_dtype_promotion("standard"):
        y = model.apply(variables, image)
    oracle.assert_same(y, torch_result(theirs, image), "float64", 300)

    other = torch_model()
    for parameter in other.parameters():
        parameter.data.zero_()
    state = porting.to_torch(variables, LAYERS, tensors="torch")
    other.load_state_dict(state)
    oracle.assert_same(
        torch_result(other, image), torch_result(theirs, image), "float64", 300
    )


@pytest.mark.torch
@pytest.mark.flax
def test_a_whole_nnx_model(image):
    from flax import nnx

    theirs, model = torch_model(), nnx_model()
    state = nnx.state(model)
    values = porting.to_flax(theirs.state_dict(), LAYERS, nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, values)
    nnx.update(model, state)
    with jax.numpy_dtype_promotion("standard"):
        y = model(image)
    oracle.assert_same(y, torch_result(theirs, image), "float64", 300)
    back = porting.to_torch(values, LAYERS)
    for name, tensor in theirs.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_array_equal(back[name], tensor.numpy())


def test_all_faults_in_one_error():
    state = {
        "up.weight": np.ones((3, 8, 4, 5)),
        "up.biass": np.ones(8),
        "old.weight": np.ones(2),
        "norm.num_batches_tracked": np.ones((), np.int64),
    }
    like = {
        "params": {
            "up": {"kernel": np.ones((4, 4, 3, 8)), "bias": np.ones(8)},
            "head": {"kernel": np.ones((2, 2))},
        }
    }
    message = (
        "to_flax: the state dict and the layers do not fit. missing: "
        "params/head/kernel (no layer is mapped to its module), up.bias (for "
        "params/up/bias); unexpected: up.biass, old.weight; mis-shaped: up.weight has "
        "shape (3, 8, 4, 5), which makes (4, 5, 3, 8), and params/up/kernel is "
        "(4, 4, 3, 8).\nResolution: map every Flax module to its PyTorch layer by name,"
    )
    layers = {"up": porting.conv_transpose("up")}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        porting.to_flax(state, layers, like)
    with pytest.raises(ValueError, match="unexpected: params/head/kernel"):
        porting.to_torch(like, layers)
    with pytest.raises(ValueError, match="got 'jax'"):
        porting.to_torch(like, layers, tensors="jax")


def test_a_map_with_too_many_entries():
    """An entry that names no module of the model is a wrong name, both ways."""
    state = {"up.weight": np.ones((3, 8, 4, 4))}
    like = {"params": {"up": {"kernel": np.ones((4, 4, 3, 8))}}}
    layers = {
        "params/up": porting.conv_transpose("up"),
        "decoder/upp": porting.conv_transpose("up2"),
    }
    message = "mapped, but not in the model: 'decoder/upp' (to up2)."
    with pytest.raises(ValueError, match=rf"^to_flax: .* fit\. {re.escape(message)}"):
        porting.to_flax(state, layers, like)
    with pytest.raises(ValueError, match=rf"^to_torch: .* fit\. {re.escape(message)}"):
        porting.to_torch(like, layers)
    del layers["decoder/upp"]
    back = porting.to_torch(porting.to_flax(state, layers, like), layers)
    np.testing.assert_array_equal(back["up.weight"], state["up.weight"])


@pytest.mark.parametrize(
    ("layer", "parameter", "shape", "axes"),
    [
        (porting.conv_transpose, "kernel", (3, 8), "(*kernel_size, C_in, C_out)"),
        (porting.conv_transpose2d, "kernel", (3, 8, 4), "(C_in, C_out // groups, kh,"),
        (porting.conv, "kernel", (3, 8), "(*kernel_size, C_in // groups, C_out)"),
        (porting.dense, "kernel", (2, 3, 8), "(C_in, C_out)"),
        (porting.conv, "bias", (8, 1), "(channels,)"),
        (porting.norm, "scale", (), "(*normalized_shape,)"),
    ],
)
def test_rank_of_a_variable(layer, parameter, shape, axes):
    """Listed with the shapes; a mapping by the wrong function, too."""
    variables = {"a": {parameter: np.ones(shape)}}
    message = f"mis-shaped: a/{parameter} has shape {shape}, must be {axes}"
    with pytest.raises(ValueError, match=f"^to_torch: .*{re.escape(message)}"):
        porting.to_torch(variables, {"a": layer("b")})
    name = layer("b").torch_name(parameter)
    message = f"mis-shaped: {name} has shape {shape}, must be "
    with pytest.raises(ValueError, match=f"^to_flax: .*{re.escape(message)}"):
        porting.to_flax({name: np.ones(shape)}, {"a": layer("b")}, variables)


def test_two_modules_of_one_torch_layer():
    """Tied weights go both ways, if they are still equal."""
    tied = {m: {"kernel": np.ones((1, 1, 2, 2))} for m in ("a", "b")}
    layers = {m: porting.conv_transpose("up") for m in tied}
    assert list(porting.to_torch(tied, layers)) == ["up.weight"]
    tied["b"]["kernel"] = np.zeros((1, 1, 2, 2))
    message = "conflicting: up.weight is both a/kernel and b/kernel"
    with pytest.raises(ValueError, match=message):
        porting.to_torch(tied, layers)


def test_dtypes_are_those_of_the_model():
    like = {"up": {"kernel": np.ones((1, 1, 2, 2), jnp.bfloat16)}}
    state = {"weight": np.ones((2, 2, 1, 1), np.float32)}
    got = porting.to_flax(state, {"up": porting.conv_transpose("")}, like)
    assert got["up"]["kernel"].dtype == jnp.bfloat16
    state["weight"] = np.ones((2, 2, 1, 1), np.int32)
    with pytest.raises(TypeError, match="weight must be a floating-point array"):
        porting.to_flax(state, {"up": porting.conv_transpose("")}, like)
