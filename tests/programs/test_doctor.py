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
    (line,) = [t for t in text.splitlines() if t.strip().startswith("forward")]
    assert line.split()[:3] == [
        "forward",
        "xla:dilated",
        expected.plans["forward"].row,
    ]


def test_expected_gain(capsys):
    """XLA multiplies as many products as a stretched input has elements."""
    (finding,) = doctor(up, X, W, platform="cpu").findings
    assert {name: gain.now for name, gain in finding.gains.items()} == {
        "forward": "xla:dilated",
        "grad_input": "xla:strided",
        "grad_weight": "stretched filter",
    }
    assert finding.gains["grad_input"].products == 1
    assert finding.gains["grad_weight"].products == 6  # 2 * 3, the strides
    assert all(gain.seconds is None for gain in finding.gains.values())
    text = capsys.readouterr().out
    assert "expected gain" in text
    assert "6.0 times fewer products" in text


def test_measured_gain(capsys):
    gradient = jax.grad(lambda x, w: up(x, w).sum(), 1)
    forward, weight = doctor(gradient, X, W, measure=True).findings
    assert list(forward.gains) == ["forward", "grad_input", "grad_weight"]
    assert list(weight.gains) == ["grad_weight"]
    for finding in (forward, weight):
        for gain in finding.gains.values():
            assert min(gain.seconds) > 0
    text = capsys.readouterr().out
    assert "measured gain" in text
    assert " times as fast: " in text


def test_gain_of_symbolic_sizes():
    n, h = jax.export.symbolic_shape("n, h")
    x = jax.ShapeDtypeStruct((n, h, 5, 3), jnp.float32)
    (finding,) = doctor(up, x, W, measure=True).findings
    assert str(finding.gains["grad_weight"]) == "sizes are symbolic"


def test_measures_only_here():
    elsewhere = "cuda" if jax.default_backend() == "cpu" else "cpu"
    with pytest.raises(ValueError, match=r"measure runs on the default device.*\n.*"):
        doctor(up, X, W, platform=elsewhere, measure=True)


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
