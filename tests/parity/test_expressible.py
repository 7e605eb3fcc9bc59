"""The table of docs/porting.md: what each library can express, tried on the library."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transconv import conv_transpose2d

X = np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype("float32")
STRIDE = (2, 3)


def parameters(f):
    return set(inspect.signature(f).parameters)


def ours(weight, **arguments):
    return np.asarray(
        conv_transpose2d(X, weight, stride=STRIDE, precision="highest", **arguments)
    )


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_torch():
    torch = pytest.importorskip("torch")
    f = torch.nn.functional.conv_transpose2d
    layer = torch.nn.ConvTranspose2d
    assert {"groups", "dilation", "output_padding"} <= parameters(layer)
    assert "output_size" in parameters(layer.forward)
    with pytest.raises(ValueError, match="zeros"):
        layer(4, 4, 3, padding_mode="circular")
    x, w = torch.tensor(X), torch.randn(4, 3, 3, 4)
    with pytest.raises(RuntimeError, match="negative padding"):
        f(x, w, padding=-1)
    with pytest.raises((RuntimeError, TypeError)):
        f(x, w, padding=((0, 1), (0, 1)))
    # Below the dilation, though not below the stride.
    assert f(x, w, dilation=3, output_padding=2).shape == (2, 3, 13, 17)
    with pytest.raises(RuntimeError, match="output padding must be smaller"):
        f(x, w, dilation=3, output_padding=3)


def test_lax():
    names = parameters(jax.lax.conv_transpose)
    assert {"rhs_dilation", "dimension_numbers", "transpose_kernel"} <= names
    assert not any("group" in n or n.startswith("output") for n in names)
    k = np.random.default_rng(1).standard_normal((3, 4, 4, 3)).astype("float32")
    y = jax.lax.conv_transpose(
        X.transpose(0, 2, 3, 1), k, STRIDE, [(-1, 2), (3, 0)], precision="highest"
    )
    weight = k[::-1, ::-1].transpose(2, 3, 0, 1)
    expected = ours(weight, padding=((3, 0), (0, 3)))
    close(np.asarray(y).transpose(0, 3, 1, 2), expected)


def test_flax():
    nn = pytest.importorskip("flax.linen")
    names = parameters(nn.ConvTranspose)
    assert {"kernel_dilation", "transpose_kernel", "mask"} <= names
    assert not any("group" in n or n.startswith("output") for n in names)
    x = jnp.asarray(X.transpose(0, 2, 3, 1))
    key = jax.random.key(0)
    layer = nn.ConvTranspose(3, (3, 4), STRIDE, [(-1, 2), (3, 0)], precision="highest")
    y, variables = layer.init_with_output(key, x)
    kernel = np.asarray(variables["params"]["kernel"])
    assert kernel.shape == (3, 4, 4, 3)
    weight = kernel[::-1, ::-1].transpose(2, 3, 0, 1)
    expected = ours(weight, padding=((3, 0), (0, 3)))
    close(np.asarray(y).transpose(0, 3, 1, 2), expected)
    circular = nn.ConvTranspose(3, (3, 4), STRIDE, "CIRCULAR")
    assert circular.init_with_output(key, x)[0].shape == (2, 10, 18, 3)


def test_equinox():
    nn = pytest.importorskip("equinox").nn
    key = jax.random.key(0)
    padding = ((-1, 2), (1, 0))
    layer = nn.ConvTranspose2d(
        4,
        6,
        (3, 4),
        STRIDE,
        (1, 2),
        padding,
        groups=2,
        use_bias=False,
        key=key,
        dtype=jnp.float32,
    )
    assert layer.weight.shape == (6, 2, 3, 4)
    with jax.default_matmul_precision("highest"):
        y = jax.vmap(layer)(jnp.asarray(X))
    weight = layer.weight.reshape(2, 3, 2, 3, 4)[..., ::-1, ::-1]
    weight = weight.swapaxes(1, 2).reshape(4, 3, 3, 4)
    close(y, ours(weight, padding=((-1, 1), (1, -2)), groups=2))
    with pytest.raises(ValueError, match="output_padding < stride"):
        nn.ConvTranspose2d(4, 6, 3, 1, 1, dilation=3, key=key)
    nn.ConvTranspose2d(4, 6, 3, 1, 0, "SAME", padding_mode="CIRCULAR", key=key)


def test_haiku():
    hk = pytest.importorskip("haiku")
    names = parameters(hk.Conv2DTranspose)
    assert {"output_shape", "data_format", "mask"} <= names
    assert not any("group" in n or "dilation" in n or "rate" in n for n in names)

    def apply(x):
        padding = ((-1, 2), (3, 0))
        layer = hk.Conv2DTranspose(3, (3, 4), STRIDE, padding=padding, with_bias=False)
        return layer(x, precision=jax.lax.Precision.HIGHEST)

    f = hk.transform(apply)
    x = jnp.asarray(X.transpose(0, 2, 3, 1))
    variables = f.init(jax.random.key(0), x)
    kernel = np.asarray(variables["conv2_d_transpose"]["w"])
    assert kernel.shape == (3, 4, 3, 4)
    y = np.asarray(f.apply(variables, None, x))
    weight = kernel[::-1, ::-1].transpose(3, 2, 0, 1)
    expected = ours(weight, padding=((3, 0), (0, 3)))
    close(y.transpose(0, 3, 1, 2), expected)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_haiku_output_shape(padding):
    hk = pytest.importorskip("haiku")
    full = ((5 - 1) * 2 + 3, (6 - 1) * 3 + 4)
    size = (9, 17) if padding == "SAME" else (full[0] + 1, full[1] + 2)

    def apply(x):
        layer = hk.Conv2DTranspose(
            3, (3, 4), STRIDE, size, padding=padding, with_bias=False
        )
        return layer(x, precision=jax.lax.Precision.HIGHEST)

    f = hk.transform(apply)
    x = jnp.asarray(X.transpose(0, 2, 3, 1))
    variables = f.init(jax.random.key(0), x)
    y = np.asarray(f.apply(variables, None, x))
    kernel = np.asarray(variables["conv2_d_transpose"]["w"])
    weight = kernel[::-1, ::-1].transpose(3, 2, 0, 1)
    crops = []
    for f_size, o in zip(full, size, strict=True):
        lo = max(f_size - o, 0) // 2 if padding == "SAME" else 0
        crops.append((lo, f_size - o - lo))
    close(y.transpose(0, 3, 1, 2), ours(weight, padding=tuple(crops)))


def test_keras(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    layer = keras.layers.Conv2DTranspose
    names = parameters(layer)
    assert {"dilation_rate", "output_padding", "data_format"} <= names
    assert not any("group" in n for n in names)
    with pytest.raises(ValueError, match="not supported in conjunction"):
        layer(3, 3, strides=2, dilation_rate=2)
    with pytest.raises(ValueError, match="strictly less than"):
        layer(3, 3, dilation_rate=2, output_padding=1)
    with pytest.raises(ValueError, match="padding"):
        layer(3, 3, padding="full")
    made = layer(3, (3, 4), strides=STRIDE, padding="same", use_bias=False)
    with jax.default_matmul_precision("highest"):
        y = np.asarray(made(jnp.asarray(X.transpose(0, 2, 3, 1))))
    kernel = np.asarray(made.kernel)
    assert kernel.shape == (3, 4, 3, 4)
    expected = ours(kernel.transpose(3, 2, 0, 1), padding="SAME")
    close(y.transpose(0, 3, 1, 2), expected)
