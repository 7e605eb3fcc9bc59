"""The torch layer: initial weights to the bit, forward, gradients, state dicts."""

import math
import pickle
import platform
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jax_transconv import torch_compat
from jax_transconv.torch_compat import ConvTranspose2d, Generator, init

DTYPES = ("float32", "float64", "float16", "bfloat16")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def fused(torch):
    """Torch, where its kernels are built with fused multiply-add as `init` assumes."""
    capability = torch.backends.cpu.get_cpu_capability()
    if platform.machine() in ("x86_64", "AMD64") and capability == "DEFAULT":
        pytest.skip("torch rounds twice on a processor without fused multiply-add")
    return torch


def draws_as_we_do(torch, dtype):
    """Before 2.13 torch drew 16-bit types of as many bits as they have digits."""
    version = tuple(int(n) for n in torch.__version__.split(".")[:2])
    return version >= (2, 13) or dtype in ("float32", "float64")


def bits(array):
    """The bit patterns of an array of any of the four dtypes, or of a torch tensor."""
    if hasattr(array, "detach"):
        array = array.detach()
        integer = {2: "int16", 4: "int32", 8: "int64"}[array.element_size()]
        array = array.view(getattr(__import__("torch"), integer)).numpy()
    array = np.asarray(array)
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def assert_same_bits(ours, theirs):
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_array_equal(bits(ours), bits(theirs))


# -- Initial weights. --

# After torch.manual_seed(2**40 + 7), ConvTranspose2d(2, 6, (2, 1), groups=2), torch
# 2.13: first and last element of the weight, last of the bias.
KNOWN = {
    "float32": (0x3CE9967A, 0x3D2A58A0, 0xBEB27BEA),
    "float64": (0xBFC70EAAF2A736D2, 0xBFD71EC9B94BBF81, 0x3FD782069FA4DC03),
    "float16": (0x274D, 0x2953, 0xB594),
    "bfloat16": (0x3CEA, 0x3D2A, 0xBEB2),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_init_known_bits(dtype):
    weight, bias = init(2**40 + 7, 2, 6, (2, 1), groups=2, dtype=dtype)
    assert bias is not None
    assert weight.shape == (2, 3, 2, 1)
    assert weight.dtype == bias.dtype == np.dtype(dtype)
    found = bits(weight).ravel()
    assert (found[0], found[-1], bits(bias)[-1]) == KNOWN[dtype]


SIZES = [
    # Weights of 1 to 17 elements, and either side of any vectorised path.
    *[(n, 1, 1, 1) for n in range(1, 18)],
    # Biases of 1 to 40 elements.
    *[(1, n, 1, 1) for n in range(1, 41)],
    (16, 33, (3, 5), 1),
    (12, 16, 3, 4),
    (8, 8, 4, 8),
    (64, 128, (9, 2), 2),
    (200, 150, (3, 3), 1),
]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_init_is_torchs(fused, dtype):
    if not draws_as_we_do(fused, dtype):
        pytest.skip("torch before 2.13 draws 16-bit types otherwise")
    for number, (cin, cout, kernel, groups) in enumerate(SIZES):
        for bias in (True, False):
            fused.manual_seed(number)
            theirs = fused.nn.ConvTranspose2d(
                cin,
                cout,
                kernel,
                groups=groups,
                bias=bias,
                dtype=getattr(fused, dtype),
            )
            weight, ours = init(number, cin, cout, kernel, groups, bias, dtype)
            assert_same_bits(weight, theirs.weight)
            if bias:
                assert_same_bits(ours, theirs.bias)
            else:
                assert ours is None


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_init_is_torchs_where_values_round_to_the_upper_end(fused, dtype):
    """2 million draws reach the top of the interval in the 16-bit types."""
    if not draws_as_we_do(fused, dtype):
        pytest.skip("torch before 2.13 draws 16-bit types otherwise")
    fused.manual_seed(5)
    theirs = fused.nn.ConvTranspose2d(4000, 125, 2, dtype=getattr(fused, dtype))
    weight, _ = init(5, 4000, 125, 2, dtype=dtype)
    assert_same_bits(weight, theirs.weight)


@pytest.mark.torch
@pytest.mark.parametrize(
    "seed",
    [
        1,
        2**31,
        2**32 - 1,
        2**32,
        2**32 + 1,
        2**63,
        2**64 - 1,
        -1,
        -7,
        -(2**32),
        -(2**63),
    ],
)
def test_init_takes_every_seed_of_torch(fused, seed):
    fused.manual_seed(seed)
    theirs = fused.nn.ConvTranspose2d(3, 5, 2)
    weight, bias = init(seed, 3, 5, 2)
    assert_same_bits(weight, theirs.weight)
    assert_same_bits(bias, theirs.bias)


@pytest.mark.torch
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    channels=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    dtype=st.sampled_from(DTYPES),
)
def test_init_is_torchs_anywhere(fused, seed, channels, kernel, dtype):
    assume(draws_as_we_do(fused, dtype))
    cin, cout, groups = (
        channels[0] * channels[2],
        channels[1] * channels[2],
        channels[2],
    )
    fused.manual_seed(seed)
    theirs = fused.nn.ConvTranspose2d(
        cin, cout, kernel, groups=groups, dtype=getattr(fused, dtype)
    )
    weight, bias = init(seed, cin, cout, kernel, groups, dtype=dtype)
    assert_same_bits(weight, theirs.weight)
    assert_same_bits(bias, theirs.bias)


@pytest.mark.torch
def test_generator_runs_through_a_model(fused):
    """Three layers, with an ordinary convolution in between, from one seed."""
    fused.manual_seed(11)
    theirs = fused.nn.Sequential(
        fused.nn.ConvTranspose2d(3, 7, 3, bias=False),
        fused.nn.ConvTranspose2d(7, 5, (2, 3)),
        fused.nn.Conv2d(5, 4, 3),
        fused.nn.ConvTranspose2d(4, 2, 2, dtype=fused.float64),
    )
    generator = Generator(11)
    first = ConvTranspose2d(3, 7, 3, bias=False, generator=generator)
    second = ConvTranspose2d(7, 5, (2, 3), generator=generator)
    bound = 1 / math.sqrt(5 * 9)
    conv_weight = generator.uniform((4, 5, 3, 3), bound)
    conv_bias = generator.uniform((4,), bound)
    last = ConvTranspose2d(4, 2, 2, generator=generator, dtype=jnp.float64)
    assert_same_bits(first.weight, theirs[0].weight)
    assert first.bias is None
    assert_same_bits(second.weight, theirs[1].weight)
    assert_same_bits(second.bias, theirs[1].bias)
    assert_same_bits(conv_weight, theirs[2].weight)
    assert_same_bits(conv_bias, theirs[2].bias)
    assert_same_bits(last.weight, theirs[3].weight)
    assert_same_bits(last.bias, theirs[3].bias)


def test_generator_goes_on_after_pickling():
    generator = Generator(3)
    generator.uniform((5,), 1.0)
    twin = pickle.loads(pickle.dumps(generator))
    np.testing.assert_array_equal(
        generator.uniform((4, 2), 0.5), twin.uniform((4, 2), 0.5)
    )


def test_layer_without_a_seed_differs_every_time():
    first, second = ConvTranspose2d(2, 3, 3), ConvTranspose2d(2, 3, 3)
    assert not np.array_equal(first.weight, second.weight)


# -- Forward and gradients. --

LAYERS = {
    "plain": {"in_channels": 3, "out_channels": 4, "kernel_size": 3},
    "stride": {
        "in_channels": 3,
        "out_channels": 2,
        "kernel_size": 4,
        "stride": 2,
        "padding": 1,
    },
    "rectangular": {
        "in_channels": 2,
        "out_channels": 5,
        "kernel_size": (3, 2),
        "stride": (2, 3),
        "padding": (1, 0),
        "output_padding": (1, 2),
    },
    "groups": {
        "in_channels": 4,
        "out_channels": 6,
        "kernel_size": 3,
        "stride": 2,
        "groups": 2,
        "bias": False,
    },
    "depthwise": {
        "in_channels": 4,
        "out_channels": 4,
        "kernel_size": (2, 3),
        "groups": 4,
    },
    "dilation": {
        "in_channels": 3,
        "out_channels": 3,
        "kernel_size": (2, 3),
        "stride": (1, 2),
        "dilation": (3, 2),
        "padding": (2, 1),
        "output_padding": (2, 1),
    },
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def taps(weight, groups):
    """Length of the sum of one output."""
    return weight.shape[0] // groups * math.prod(weight.shape[2:])


@pytest.mark.torch
@each_layer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batched", [True, False])
def test_forward_and_gradients_are_torchs(torch, rng, name, dtype, batched):
    torch.manual_seed(1)
    theirs = torch.nn.ConvTranspose2d(**LAYERS[name], dtype=getattr(torch, dtype))
    layer = torch_compat.module_from_torch(theirs, precision="highest")
    shape = (2, layer.in_channels, 5, 4)[0 if batched else 1 :]
    x = rng.standard_normal(shape).astype(dtype)
    x_torch = torch.tensor(x, requires_grad=True)
    y_torch = theirs(x_torch)
    dy = rng.standard_normal(tuple(y_torch.shape)).astype(dtype)
    y_torch.backward(torch.tensor(dy))

    y, pull = jax.vjp(lambda m, x: m(x), layer, jnp.asarray(x))
    d_layer, dx = pull(jnp.asarray(dy))
    reduction = taps(layer.weight, layer.groups)
    oracle.assert_same(y, y_torch, dtype, reduction, what="y")
    oracle.assert_same(dx, x_torch.grad, dtype, reduction, what="dx")
    oracle.assert_same(d_layer.weight, theirs.weight.grad, dtype, dy.size, what="dw")
    assert (d_layer.bias is None) == (theirs.bias is None)
    if theirs.bias is not None:
        oracle.assert_same(d_layer.bias, theirs.bias.grad, dtype, dy.size, what="db")


@pytest.mark.torch
@pytest.mark.parametrize("size", [(8, 8), [7, 8], (1, 2, 8, 7)])
def test_output_size_is_torchs(torch, rng, size):
    torch.manual_seed(2)
    theirs = torch.nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1)
    layer = torch_compat.module_from_torch(theirs, precision="highest")
    x = rng.standard_normal((1, 2, 4, 4)).astype(np.float32)
    expected = theirs(torch.tensor(x), output_size=list(size))
    oracle.assert_same(layer(x, output_size=size), expected, "float32", 18)
    if len(size) == 2:
        oracle.assert_same(layer(x[0], (2, *size)), expected[0], "float32", 18)


@pytest.mark.torch
def test_output_size_is_refused_where_torch_refuses(torch):
    theirs = torch.nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1)
    layer = torch_compat.module_from_torch(theirs)
    x = np.ones((1, 2, 4, 5), np.float32)
    for size in [(6, 9), (9, 9), (7, 8), (7, 11), (8,), (2, 8, 9), (1, 1, 2, 8, 9)]:
        with pytest.raises(ValueError, match=r"output_size|output size"):
            theirs(torch.tensor(x), output_size=size)
        with pytest.raises(ValueError, match="output_size"):
            layer(x, size)


def test_output_size_messages():
    layer = ConvTranspose2d(2, 2, 3, stride=2, padding=1, seed=0)
    x = np.ones((1, 2, 4, 5), np.float32)
    with pytest.raises(ValueError, match=r"height 9 .* legal values are 7 to 8"):
        layer(x, (9, 9))
    message = (
        "ConvTranspose2d: for 4D input, output_size must have 2 or 4 elements, got 3: "
        "(2, 8, 9).\nResolution: pass (height, width)."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layer(x, (2, 8, 9))
    with pytest.raises(ValueError, match=r"for 3D input, .* 2 or 3 elements, got 1: 8"):
        layer(x[0], 8)  # pyright: ignore[reportArgumentType]


# -- A pytree. --


def test_pytree_paths_and_jit():
    layer = ConvTranspose2d(2, 4, 3, 2, groups=2, seed=0, precision="highest")
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(layer)]
    assert paths == [".weight", ".bias"]
    traces = []

    @jax.jit
    def apply(layer, x):
        traces.append(layer)
        return layer(x)

    x = jnp.ones((1, 2, 4, 4), jnp.float32)
    oracle.assert_same(apply(layer, x), layer(x), "float32", 9)
    apply(jax.tree.map(lambda leaf: leaf + 1, layer), x)
    assert len(traces) == 1
    apply(ConvTranspose2d(2, 4, 3, 3, groups=2, seed=0, precision="highest"), x)
    assert len(traces) == 2


def test_gradient_step_lowers_the_loss(rng):
    layer = ConvTranspose2d(2, 3, 3, seed=0)
    x = rng.standard_normal((2, 2, 4, 4)).astype(np.float32)

    def loss(layer):
        return jnp.mean(jnp.square(layer(x)))

    value, gradient = jax.value_and_grad(loss)(layer)
    assert isinstance(gradient, ConvTranspose2d)
    assert repr(gradient) == repr(layer)
    stepped = jax.tree.map(lambda p, g: p - jnp.float32(0.1) * g, layer, gradient)
    assert loss(stepped) < value


def test_vmap_over_layers(rng):
    layers = [
        ConvTranspose2d(2, 3, 3, seed=seed, precision="highest") for seed in range(3)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    x = rng.standard_normal((1, 2, 4, 4)).astype(np.float32)
    together = jax.vmap(lambda layer: layer(x))(stacked)
    for one, layer in zip(together, layers, strict=True):
        oracle.assert_same(one, layer(x), "float32", 18)


@each_layer
def test_pickle(name):
    layer = ConvTranspose2d(**LAYERS[name], seed=4, autodiff="both")
    twin = pickle.loads(pickle.dumps(layer))
    assert repr(twin) == repr(layer)
    assert jax.tree.structure(twin) == jax.tree.structure(layer)
    jax.tree.map(np.testing.assert_array_equal, twin, layer)


@pytest.mark.torch
@each_layer
def test_repr_is_torchs(torch, name):
    ours = ConvTranspose2d(**LAYERS[name], seed=0)
    assert repr(ours) == repr(torch.nn.ConvTranspose2d(**LAYERS[name]))


# -- State dicts. --


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_torch_state_dict(torch, dtype):
    model = torch.nn.Sequential(
        torch.nn.ConvTranspose2d(3, 5, (3, 2), dtype=getattr(torch, dtype))
    )
    layer = ConvTranspose2d(3, 5, (3, 2), seed=0, dtype=dtype)
    loaded = layer.from_state_dict(model.state_dict(), prefix="0.")
    assert_same_bits(loaded.weight, model[0].weight)
    assert_same_bits(loaded.bias, model[0].bias)
    assert loaded.weight.dtype == dtype


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_torch_state_dict(torch, dtype):
    layer = ConvTranspose2d(3, 4, 2, groups=1, seed=3, dtype=dtype)
    model = torch.nn.Sequential(
        torch.nn.ConvTranspose2d(3, 4, 2, dtype=getattr(torch, dtype))
    )
    model.load_state_dict(layer.to_state_dict("0.", tensors="torch"))
    assert_same_bits(layer.weight, model[0].weight)
    assert_same_bits(layer.bias, model[0].bias)


@pytest.mark.torch
def test_torch_memory_is_not_shared(torch):
    theirs = torch.nn.ConvTranspose2d(2, 2, 2)
    loaded = ConvTranspose2d(2, 2, 2, seed=0).from_state_dict(theirs.state_dict())
    made = torch_compat.module_from_torch(theirs)
    before = np.array(loaded.weight)
    with torch.no_grad():
        theirs.weight.zero_()
    np.testing.assert_array_equal(loaded.weight, before)
    np.testing.assert_array_equal(made.weight, before)
    state = loaded.to_state_dict(tensors="torch")
    state["weight"].zero_()
    np.testing.assert_array_equal(loaded.weight, before)


@pytest.mark.torch
def test_from_a_permuted_torch_tensor(torch):
    weight = torch.arange(24.0).reshape(2, 2, 3, 2).permute(3, 1, 2, 0)
    assert not weight.is_contiguous()
    layer = ConvTranspose2d(2, 2, (3, 2), bias=False, seed=0)
    loaded = layer.from_state_dict({"weight": weight})
    np.testing.assert_array_equal(loaded.weight, weight.contiguous().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_numpy_state_dict_round_trip(dtype, bias):
    layer = ConvTranspose2d(4, 6, 3, groups=2, bias=bias, seed=0, dtype=dtype)
    state = layer.to_state_dict("a.b.")
    assert list(state) == (["a.b.weight", "a.b.bias"] if bias else ["a.b.weight"])
    assert all(type(leaf) is np.ndarray for leaf in state.values())
    other = ConvTranspose2d(4, 6, 3, groups=2, bias=bias, seed=1, dtype=dtype)
    loaded = other.from_state_dict({**state, "c.weight": 0}, prefix="a.b.")
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), loaded, layer)


def test_loading_casts_to_the_layers_dtype():
    layer = ConvTranspose2d(1, 1, 1, seed=0)
    state = {"weight": np.full((1, 1, 1, 1), 0.1), "bias": np.ones(1, np.float16)}
    loaded = layer.from_state_dict(state)
    assert [leaf.dtype for leaf in jax.tree.leaves(loaded)] == [np.float32] * 2
    assert float(loaded.weight[0, 0, 0, 0]) == float(np.float32(0.1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_round_trip(tmp_path, dtype):
    pytest.importorskip("safetensors")
    path = tmp_path / "layer.safetensors"
    layer = ConvTranspose2d(3, 4, 2, seed=0, dtype=dtype)
    layer.to_state_dict("up.", path=path)
    twin = ConvTranspose2d(3, 4, 2, seed=1, dtype=dtype)
    for source in (path, str(path)):
        loaded = twin.from_state_dict(source, "up.")
        assert_same_bits(loaded.weight, np.asarray(layer.weight))
        assert_same_bits(loaded.bias, np.asarray(layer.bias))


@pytest.mark.torch
def test_safetensors_of_torch(torch, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    model = torch.nn.Sequential(torch.nn.ConvTranspose2d(2, 3, 2, dtype=torch.bfloat16))
    safetensors.save_file(model.state_dict(), path)
    layer = ConvTranspose2d(2, 3, 2, seed=0, dtype=ml_dtypes.bfloat16)
    assert_same_bits(layer.from_state_dict(path, "0.").weight, model[0].weight)


def test_state_dict_faults_are_all_listed():
    layer = ConvTranspose2d(3, 5, 2, seed=0)
    state = {"weight": np.ones((5, 3, 2, 2)), "scale": np.ones(3)}
    message = (
        "ConvTranspose2d: the state dict does not fit ConvTranspose2d(3, 5, "
        "kernel_size=(2, 2), stride=(1, 1)) with prefix=''. Missing: bias; unexpected: "
        "scale; mis-shaped: weight has shape (5, 3, 2, 2), not (3, 5, 2, 2).\n"
        "Resolution: weights are (in_channels, out_channels // groups, kh, kw); build "
        "the layer with the arguments of the torch one."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layer.from_state_dict(state)


def test_wrong_prefix_names_the_right_ones():
    layer = ConvTranspose2d(3, 5, 2, seed=0)
    state = layer.to_state_dict("up.0.") | layer.to_state_dict("up.1.")
    message = (
        "ConvTranspose2d: the state dict does not fit ConvTranspose2d(3, 5, "
        "kernel_size=(2, 2), stride=(1, 1)) with prefix='down.'. Missing: down.weight, "
        "down.bias.\nResolution: choose the prefix of a layer; those in the state dict "
        "are ['up.0.', 'up.1.']."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layer.from_state_dict(state, "down.")


def test_unexpected_bias():
    layer = ConvTranspose2d(3, 5, 2, seed=0, bias=False)
    state = ConvTranspose2d(3, 5, 2, seed=0).to_state_dict()
    with pytest.raises(ValueError, match=r"Unexpected: bias\.\nResolution: build the"):
        layer.from_state_dict(state)


def test_integer_parameters_are_refused():
    layer = ConvTranspose2d(1, 1, 1, bias=False, seed=0)
    message = (
        "ConvTranspose2d: weight must be a floating-point array, got dtype int8.\n"
        "Resolution: convert it to float32 first."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        layer.from_state_dict({"weight": np.ones((1, 1, 1, 1), np.int8)})


def test_float64_needs_x64():
    message = (
        "ConvTranspose2d: weight is float64, which JAX would narrow to float32.\n"
        "Resolution: jax.config.update('jax_enable_x64', True), or use a float32 layer."
    )
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match=f"^{re.escape(message)}$"),
    ):
        ConvTranspose2d(1, 1, 1, seed=0, dtype=np.float64)


# -- Bad arguments. --


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"padding_mode": "circular"},
            ValueError,
            'ConvTranspose2d: only "zeros" padding mode is supported, got '
            "padding_mode='circular'.\n"
            "Resolution: pad the input before the layer and crop after it.",
        ),
        (
            {"groups": 3},
            ValueError,
            "ConvTranspose2d: in_channels must be divisible by groups, got "
            "in_channels=4 and groups=3.\nResolution: use a divisor of 4 as groups.",
        ),
        (
            {"out_channels": 1, "groups": 4},
            ValueError,
            "ConvTranspose2d: out_channels must be divisible by groups, got "
            "out_channels=1 and groups=4.\nResolution: use a divisor of 1 as groups.",
        ),
        (
            {"groups": 0},
            ValueError,
            "ConvTranspose2d: groups must be a positive integer, got 0.\n"
            "Resolution: use groups >= 1.",
        ),
        (
            {"in_channels": 2.5},
            ValueError,
            "ConvTranspose2d: in_channels must be a positive integer, got 2.5.\n"
            "Resolution: use in_channels >= 1.",
        ),
        (
            {"seed": 2**64},
            ValueError,
            "Generator: seed must be in [-2**63, 2**64), got 18446744073709551616.\n"
            "Resolution: pass what torch.manual_seed took.",
        ),
        (
            {"seed": 1.5},
            TypeError,
            "Generator: seed must be an integer, got 1.5 of type float.\n"
            "Resolution: pass what torch.manual_seed took.",
        ),
        (
            {"dtype": "int8"},
            TypeError,
            "ConvTranspose2d: dtype must be one of float16, bfloat16, float32, "
            "float64, got int8.\nResolution: initialise in float32 and cast.",
        ),
    ],
)
def test_constructor_messages(arguments, error, message):
    good = {"in_channels": 4, "out_channels": 8, "kernel_size": 3, "seed": 0}
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        ConvTranspose2d(**good | arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"stride": 0}, ValueError, "stride"),
        ({"dilation": (1, 0)}, ValueError, "dilation"),
        ({"kernel_size": 0}, ValueError, "kernel_size"),
        ({"padding": -1}, ValueError, "padding"),
        ({"padding": "same"}, TypeError, "padding"),
        ({"output_padding": -1}, ValueError, "output_padding"),
        ({"stride": (1, 2, 3)}, TypeError, "stride"),
        ({"stride": 1.5}, TypeError, "stride"),
    ],
)
def test_constructor_refuses_geometry(arguments, error, name):
    good = {"in_channels": 4, "out_channels": 8, "kernel_size": 3, "seed": 0}
    with pytest.raises(error, match=rf"\b{name} must be .*\nResolution: "):
        ConvTranspose2d(**good | arguments)


def test_seed_and_generator_exclude_each_other():
    message = (
        "exactly one of seed and generator must be given, got seed=1 and generator="
    )
    with pytest.raises(ValueError, match=message):
        ConvTranspose2d(1, 1, 1, seed=1, generator=Generator(0))
    with pytest.raises(ValueError, match="got seed=None and generator=None"):
        init(None, 1, 1, 1)


def test_mixed_dtypes_are_refused():
    layer = ConvTranspose2d(1, 1, 1, seed=0)
    with pytest.raises(TypeError, match="one dtype"):
        layer(np.ones((1, 1, 2, 2), np.float64))


def test_unknown_kind_of_tensors():
    message = (
        "to_state_dict: tensors must be 'numpy' or 'torch', got 'jax'.\n"
        "Resolution: use one of them."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ConvTranspose2d(1, 1, 1, seed=0).to_state_dict(
            tensors="jax"  # pyright: ignore[reportArgumentType]
        )


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose1d"])
def test_module_from_torch_refuses_other_layers(torch, kind):
    message = (
        "module_from_torch: module must be a torch.nn.ConvTranspose2d, got "
        f"{kind}.\nResolution: pass the layer itself, not the model that contains it."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        torch_compat.module_from_torch(getattr(torch.nn, kind)(2, 2, 2))


@pytest.mark.torch
@each_layer
def test_module_from_torch_reads_every_argument(torch, name):
    theirs = torch.nn.ConvTranspose2d(**LAYERS[name])
    ours = torch_compat.module_from_torch(theirs, autodiff="both", backend="xla")
    assert repr(ours) == repr(theirs)
    assert (ours.autodiff, ours.backend, ours.precision) == ("both", "xla", None)
    assert_same_bits(ours.weight, theirs.weight)
