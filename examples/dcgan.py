"""A DCGAN of handwritten digits: two networks, each against the other, in seconds.

The generator [1]_ enlarges 2x2 features to the 8x8 images of scikit-learn's digits by
two transposed convolutions, `jax_transconv.nn.nnx.ConvTranspose2d`. The program draws
the curves of training with a grid of samples, and fails unless those are nearer to
held-out digits, in mean image and in deviation, than the samples of the untrained
generator are.

    python examples/dcgan.py --out demo_out/dcgan.png

.. [1] A. Radford, L. Metz and S. Chintala, "Unsupervised representation learning with
   deep convolutional generative adversarial networks", arXiv:1511.06434.
"""

import argparse
import functools
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
from jax.nn.initializers import normal

from jax_transconv.nn.nnx import ConvTranspose2d

LATENT = 16
HELD_OUT = 297  # of 1797 images
BATCH = 100
RATE = 1e-3
SEED = 0
COLUMNS, ROWS = 16, 4

init = normal(0.02)  # of the paper, as the rate of Adam's first moment below


class Generator(nnx.Module):
    """Latents (N, LATENT) to images (N, 8, 8, 1) with values from -1 to 1.

    Args:
        width: channels of the last layer but one.
        rngs: the generator of the initial weights.
    """

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.start = nnx.Linear(LATENT, 2 * 2 * 4 * width, rngs=rngs)
        self.norm1 = nnx.BatchNorm(4 * width, rngs=rngs)
        self.up1 = ConvTranspose2d(
            4 * width, width, 4, 2, padding=1, kernel_init=init, rngs=rngs
        )
        self.norm2 = nnx.BatchNorm(width, rngs=rngs)
        self.up2 = ConvTranspose2d(
            width, 1, 4, 2, padding=1, kernel_init=init, rngs=rngs
        )

    def __call__(self, z: jax.Array) -> jax.Array:
        """Applies the generator."""
        x = self.start(z).reshape(len(z), 2, 2, -1)
        x = self.up1(nnx.relu(self.norm1(x)))
        return jnp.tanh(self.up2(nnx.relu(self.norm2(x))))


class Discriminator(nnx.Module):
    """Images (N, 8, 8, 1) to the logit (N,) of being real."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.down1 = nnx.Conv(1, width, (4, 4), 2, kernel_init=init, rngs=rngs)
        self.down2 = nnx.Conv(width, 2 * width, (4, 4), 2, kernel_init=init, rngs=rngs)
        self.last = nnx.Linear(2 * 2 * 2 * width, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the discriminator."""
        x = nnx.leaky_relu(self.down1(x), 0.2)
        x = nnx.leaky_relu(self.down2(x), 0.2)
        return self.last(x.reshape(len(x), -1))[:, 0]


def cross_entropy(logits: jax.Array, real: float) -> jax.Array:
    """Of telling that all images are real (1) or are not (0)."""
    labels = jnp.full_like(logits, real)
    return optax.sigmoid_binary_cross_entropy(logits, labels).mean()


@nnx.jit
def train_step(
    generator: Generator,
    discriminator: Discriminator,
    optimizers: tuple[nnx.Optimizer, nnx.Optimizer],
    real: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One step of each network, in place; returns both losses."""
    z = jax.random.normal(key, (len(real), LATENT))

    def tell(discriminator: Discriminator, made: jax.Array) -> jax.Array:
        # 0.9: one-sided smoothing keeps the discriminator from being too sure.
        return cross_entropy(discriminator(real), 0.9) + cross_entropy(
            discriminator(made), 0
        )

    def deceive(generator: Generator, discriminator: Discriminator) -> jax.Array:
        return cross_entropy(discriminator(generator(z)), 1)

    made = jax.lax.stop_gradient(generator(z))
    told, gradients = nnx.value_and_grad(tell)(discriminator, made)
    optimizers[1].update(discriminator, gradients)
    deceived, gradients = nnx.value_and_grad(deceive)(generator, discriminator)
    optimizers[0].update(generator, gradients)
    return told, deceived


def digits() -> tuple[jax.Array, jax.Array]:
    """Training and held-out images, from -1 to 1."""
    images = sklearn.datasets.load_digits().images / 8 - 1
    images = np.random.default_rng(SEED).permutation(images)[..., None]
    images = jnp.asarray(images, jnp.float32)
    return images[HELD_OUT:], images[:HELD_OUT]


@functools.partial(nnx.jit, static_argnums=1)
def samples(generator: Generator, count: int) -> jax.Array:
    """Images of fixed latents, with the moments of the batch, as in training."""
    z = jax.random.normal(jax.random.key(SEED + 1), (count, LATENT))
    return generator(z)


def distance(made: jax.Array, real: jax.Array) -> float:
    """Root mean square difference of the mean images and of the deviations."""
    differences = jnp.stack([made.mean(0) - real.mean(0), made.std(0) - real.std(0)])
    return float(jnp.sqrt((differences**2).mean()))


def main() -> int:
    """Trains, and writes the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--width", type=int, default=32, help="channels")
    parser.add_argument("--out", type=pathlib.Path, default="demo_out/dcgan.png")
    args = parser.parse_args()
    if args.epochs < 1 or args.width < 1:
        parser.error("--epochs and --width must be at least 1")

    train, test = digits()
    rngs = nnx.Rngs(SEED)
    networks = Generator(args.width, rngs), Discriminator(args.width, rngs)
    adam = optax.adam(RATE, b1=0.5)
    optimizers = tuple(nnx.Optimizer(n, adam, wrt=nnx.Param) for n in networks)
    distances = [distance(samples(networks[0], len(test)), test)]
    rng, key = np.random.default_rng(SEED), jax.random.key(SEED)
    start, epochs = time.perf_counter(), []
    for epoch in range(1, args.epochs + 1):
        losses = []
        for batch in rng.permutation(len(train)).reshape(-1, BATCH):
            key, drawn = jax.random.split(key)
            losses.append(train_step(*networks, optimizers, train[batch], drawn))
        epochs.append(np.mean(losses, axis=0).tolist())
        distances.append(distance(samples(networks[0], len(test)), test))
        if epoch % 10 == 0 or epoch == args.epochs:
            print(
                "epoch {:3}: discriminator {:.3f}, generator {:.3f}, {:.1f} s".format(
                    epoch, *epochs[-1], time.perf_counter() - start
                )
            )
    before, after = distances[0], distances[-1]
    print(f"distance to held-out digits: {before:.3f} before, {after:.3f} after")
    told, deceived = zip(*epochs, strict=True)
    made = np.asarray(samples(networks[0], ROWS * COLUMNS))[..., 0]
    pictures.save(
        [
            pictures.curves("losses", {"discriminator": told, "generator": deceived}),
            pictures.curves("distance to held-out digits", {"": distances}),
            pictures.tiles((made + 1) / 2, COLUMNS),
        ],
        args.out,
        "losses, distance to held-out digits, and samples",
    )
    if not after < before:
        print("the samples are no nearer to digits", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
