"""doctor: what it finds, and that it says what accelerate and explain do."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_transconv import conv_transpose2d, doctor, explain

X = jax.ShapeDtypeStruct((2, 4, 5, 3), jnp.float32)
W = jax.ShapeDtypeStruct((3, 2, 3, 8), jnp.float32)


def up(x, w):
    return lax.conv_transpose(x, w, (2, 3), "SAME")


def test_rows_are_those_of_explain(capsys):
    (finding,) = doctor(up, X, W, platform="cpu").findings
    text = capsys.readouterr().out
    expected = explain(
        X,
        jax.ShapeDtypeStruct((3, 8, 3, 2), jnp.float32),
        stride=(2, 3),
        padding="SAME",
        layout="NHWC",
        platform="cpu",
    )
    assert finding.status == "taken"
    assert finding.explanation == expected
    assert finding.shapes == (X.shape, W.shape, (2, 8, 15, 8))
    assert text.startswith("1 transposed convolution on cpu: 1 for accelerate to take")
    assert f"forward {expected.plans['forward'].row}, " in text


def test_a_weight_gradient_is_one():
    gradient = jax.grad(lambda x, w: up(x, w).sum(), 1)
    forward, weight = doctor(gradient, X, W).findings
    assert list(forward.explanation.plans) == ["forward", "grad_input", "grad_weight"]
    assert list(weight.explanation.plans) == ["grad_weight"]
    assert weight.explanation.spec == forward.explanation.spec.__class__(
        **{
            **vars(forward.explanation.spec),
            "geometry": weight.explanation.spec.geometry,
        }
    )


def test_what_is_here_already():
    def f(x, w):
        return conv_transpose2d(x, w, stride=2).sum()

    x = jax.ShapeDtypeStruct((2, 3, 4, 5), jnp.float32)
    w = jax.ShapeDtypeStruct((3, 4, 2, 2), jnp.float32)
    assert [x.status for x in doctor(f, x, w).findings] == ["ours"]
    found = doctor(jax.grad(f, (0, 1)), x, w).findings
    assert {next(iter(x.explanation.plans)) for x in found} == {
        "forward",
        "grad_input",
        "grad_weight",
    }


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (
            lambda x, w: lax.conv_transpose(
                x[..., None], w[..., None, :], (2, 2, 2), "SAME"
            ),
            "it has 3 spatial axes, and only 1 or 2 are ours",
        ),
        (
            lambda x, w: lax.conv_transpose(
                x.astype(jnp.int32), w.astype(jnp.int32), (2, 2), "SAME"
            ),
            "its operands are int32 and int32",
        ),
        (
            lambda x, w: lax.conv_transpose(
                x, w, (2, 2), "SAME", preferred_element_type=jnp.float64
            ),
            "its result is float64, its operands float32",
        ),
        (
            lambda x, w: lax.conv_general_dilated(
                *(x, w, (2, 2), [(2, 2), (2, 2)], (2, 2), (2, 2)),
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            ),
            "it has a window stride as well",
        ),
    ],
)
def test_reasons(f, reason, capsys):
    (finding,) = doctor(f, X, W).findings
    assert (finding.status, finding.reason) == ("left", reason)
    assert f"left alone: {reason}" in capsys.readouterr().out


def test_nothing_to_find(capsys):
    assert doctor(jnp.sin, X).findings == ()
    assert capsys.readouterr().out.startswith("0 transposed convolutions")


def test_places():
    def model(x, w):
        def body(x, _):
            with jax.named_scope("decoder"):
                y = jax.jit(up)(x, w)
            return x, y.sum()

        return lax.scan(body, x, None, length=2)

    (finding,) = doctor(model, X, W).findings
    assert finding.place == "scan/decoder/up"


@pytest.mark.flax
def test_layers_are_named():
    from flax import linen

    model = linen.Sequential([linen.ConvTranspose(4, (3, 3), (2, 2)), linen.relu])
    x = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    (finding,) = doctor(model.apply, params, x).findings
    assert finding.place == "Sequential/layers_0"
