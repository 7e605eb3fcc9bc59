"""MeanFlow: a generator of digits in one step, trained by forward mode.

MeanFlow [1]_ learns the average velocity ``u(z, r, t)`` of the straight paths from an
image at time 0 to noise at time 1. Its target holds the derivative of the network along
a path, which `jax.jvp` gives in one forward pass: through the transposed convolutions
of the decoder, too, where ``autodiff="both"`` allows it. The image of a noise ``e`` is
then ``e - u(e, 0, 1)``.

The program checks the derivative against a difference quotient, trains, draws the curve
of the error with a grid of samples, and fails unless those are nearer to held-out
digits than before.

    python examples/meanflow.py --out demo_out/meanflow.png

.. [1] Z. Geng, M. Deng, X. Bai, J. Z. Kolter and K. He, "Mean flows for one-step
   generative modeling", arXiv:2505.13447.
"""

import argparse
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pictures
import sklearn.datasets
from flax import nnx

from jax_transconv.nn.nnx import ConvTranspose2d

HELD_OUT = 297  # of 1797 images
BATCH = 100
RATE = 2e-3
SEED = 0
COLUMNS, ROWS = 16, 4


class Velocity(nnx.Module):
    """``u(z, r, t)`` for images (N, 8, 8, 1) and times (N,).

    Args:
        width: channels at full size; twice as many below.
        rngs: the generator of the initial weights.
    """

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        def up(c_in: int, c_out: int) -> ConvTranspose2d:
            return ConvTranspose2d(
                c_in, c_out, 4, 2, padding=1, autodiff="both", rngs=rngs
            )

        self.times = nnx.Linear(8, 2 * width, rngs=rngs)
        self.first = nnx.Conv(1, width, (3, 3), rngs=rngs)
        self.down1 = nnx.Conv(width, 2 * width, (4, 4), 2, rngs=rngs)
        self.down2 = nnx.Conv(2 * width, 2 * width, (4, 4), 2, rngs=rngs)
        self.middle = nnx.Linear(8 * width, 8 * width, rngs=rngs)
        self.up2 = up(2 * width, 2 * width)
        self.up1 = up(4 * width, width)
        self.last = nnx.Conv(2 * width, 1, (3, 3), rngs=rngs)

    def __call__(self, z: jax.Array, r: jax.Array, t: jax.Array) -> jax.Array:
        """Applies the network."""
        angles = jnp.stack([t, t - r, 2 * t, 2 * (t - r)], axis=-1)
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        when = nnx.silu(self.times(waves))[:, None, None]
        full = nnx.silu(self.first(z))
        half = nnx.silu(self.down1(full) + when)
        x = nnx.silu(self.down2(half) + when)
        x = x + nnx.silu(self.middle(x.reshape(len(x), -1))).reshape(x.shape)
        x = jnp.concatenate([half, nnx.silu(self.up2(x) + when)], axis=-1)
        x = jnp.concatenate([full, nnx.silu(self.up1(x))], axis=-1)
        return self.last(x)


def along_the_path(
    model: Velocity, z: jax.Array, r: jax.Array, t: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """``u``, and its derivative while t runs and z moves with velocity v."""
    tangents = (v, jnp.zeros_like(r), jnp.ones_like(t))
    return jax.jvp(model, (z, r, t), tangents)


def draw_times(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Times r <= t, equal for three quarters, at which u is the velocity itself."""
    both = jnp.sort(jax.random.uniform(key, (2, count)), axis=0)
    same = jnp.arange(count) < 3 * count // 4
    return jnp.where(same, both[1], both[0]), both[1]


def loss(model: Velocity, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss, and the square error of the identity of MeanFlow that it weighs."""
    noise_key, time_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, x.shape)
    r, t = draw_times(time_key, len(x))
    when = t[:, None, None, None]
    z, v = (1 - when) * x + when * noise, noise - x
    u, derivative = along_the_path(model, z, r, t, v)
    target = v - (t - r)[:, None, None, None] * derivative
    error = ((u - jax.lax.stop_gradient(target)) ** 2).sum((1, 2, 3))
    # The paper's adaptive weight: large errors count less.
    return (error / jax.lax.stop_gradient(error + 1e-2)).mean(), error.mean()


@nnx.jit
def train_step(
    model: Velocity, optimizer: nnx.Optimizer, x: jax.Array, key: jax.Array
) -> jax.Array:
    """One step of the optimizer, in place; returns the square error."""
    gradients, error = nnx.grad(loss, has_aux=True)(model, x, key)
    optimizer.update(model, gradients)
    return error


@nnx.jit
def generate(model: Velocity, noise: jax.Array) -> jax.Array:
    """Images, in one evaluation of the network."""
    ones = jnp.ones(len(noise))
    return noise - model(noise, 0 * ones, ones)


def derivative_error(model: Velocity, x: jax.Array) -> float:
    """Relative difference of forward mode and of a difference quotient."""
    r, t, step = jnp.full(len(x), 0.2), jnp.full(len(x), 0.7), 1e-2
    _, derivative = along_the_path(model, x, r, t, x)
    ahead, behind = (model(x + h * x, r, t + h) for h in (step, -step))
    quotient = (ahead - behind) / (2 * step)
    return float(jnp.linalg.norm(derivative - quotient) / jnp.linalg.norm(quotient))


def digits() -> tuple[jax.Array, jax.Array]:
    """Training and held-out images, from -1 to 1."""
    images = sklearn.datasets.load_digits().images / 8 - 1
    images = np.random.default_rng(SEED).permutation(images)[..., None]
    images = jnp.asarray(images, jnp.float32)
    return images[HELD_OUT:], images[:HELD_OUT]


def distance(made: jax.Array, real: jax.Array) -> float:
    """Root mean square difference of the mean images and of the deviations."""
    differences = jnp.stack([made.mean(0) - real.mean(0), made.std(0) - real.std(0)])
    return float(jnp.sqrt((differences**2).mean()))


def main() -> int:
    """Checks, trains, and writes the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--width", type=int, default=32, help="channels")
    parser.add_argument("--out", type=pathlib.Path, default="demo_out/meanflow.png")
    args = parser.parse_args()
    if args.epochs < 1 or args.width < 1:
        parser.error("--epochs and --width must be at least 1")

    train, test = digits()
    model = Velocity(args.width, nnx.Rngs(SEED))
    off = derivative_error(model, test)
    print(f"forward mode is a difference quotient to {off:.1e}")
    steps = args.epochs * (len(train) // BATCH)
    rate = optax.cosine_decay_schedule(RATE, steps, alpha=0.02)
    optimizer = nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param)
    noise = jax.random.normal(jax.random.key(SEED + 1), test.shape)
    before = distance(generate(model, noise), test)
    rng, key = np.random.default_rng(SEED), jax.random.key(SEED)
    start, errors = time.perf_counter(), []
    for epoch in range(1, args.epochs + 1):
        found = []
        for batch in rng.permutation(len(train)).reshape(-1, BATCH):
            key, drawn = jax.random.split(key)
            found.append(train_step(model, optimizer, train[batch], drawn))
        errors.append(float(np.mean(found)))
        if epoch % 10 == 0 or epoch == args.epochs:
            seconds = time.perf_counter() - start
            print(f"epoch {epoch:3}: square error {errors[-1]:.2f}, {seconds:.1f} s")
    made = generate(model, noise)
    after = distance(made, test)
    print(f"distance to held-out digits: {before:.3f} before, {after:.3f} after")
    print(f"square error: {errors[0]:.2f} before, {errors[-1]:.2f} after")
    shown = np.clip(np.asarray(made)[: ROWS * COLUMNS, ..., 0], -1, 1)
    pictures.save(
        [
            pictures.curves("square error", {"": errors}),
            pictures.tiles((shown + 1) / 2, COLUMNS),
        ],
        args.out,
        "the error, and samples",
    )
    return 0 if off < 1e-2 and after < before else 1


if __name__ == "__main__":
    sys.exit(main())
