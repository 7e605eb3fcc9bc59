"""A convolutional variational autoencoder of handwritten digits, in some seconds.

The decoder [1]_ enlarges 2x2 features to the 8x8 images of scikit-learn's digits by two
transposed convolutions, `jax_transconv.nn.nnx.ConvTranspose2d`. The program prints the
bound on the held-out images after every few epochs, draws its curve with images that it
makes, and fails unless the bound beats the best model without a latent: independent
pixels of the right means.

    python examples/vae.py --out demo_out/vae.png

.. [1] D. P. Kingma and M. Welling, "Auto-encoding variational Bayes", arXiv:1312.6114.
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
from PIL import Image

from jax_transconv.nn.nnx import ConvTranspose2d

LATENT = 8
HELD_OUT = 297  # of 1797 images
BATCH = 100
RATE = 2e-3
SEED = 0


class VAE(nnx.Module):
    """Images (N, 8, 8, 1) with values from 0 to 1, and latents (N, LATENT)."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.down1 = nnx.Conv(1, 32, (3, 3), 2, rngs=rngs)
        self.down2 = nnx.Conv(32, 64, (3, 3), 2, rngs=rngs)
        self.moments = nnx.Linear(2 * 2 * 64, 2 * LATENT, rngs=rngs)
        self.start = nnx.Linear(LATENT, 2 * 2 * 64, rngs=rngs)
        self.up1 = ConvTranspose2d(64, 32, 4, 2, padding=1, rngs=rngs)
        self.up2 = ConvTranspose2d(32, 16, 4, 2, padding=1, rngs=rngs)
        self.last = nnx.Conv(16, 1, (3, 3), rngs=rngs)

    def encode(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and logarithm of the deviation of the latents of images."""
        x = nnx.gelu(self.down2(nnx.gelu(self.down1(x))))
        mean, log_deviation = jnp.split(self.moments(x.reshape(len(x), -1)), 2, axis=-1)
        return mean, log_deviation

    def decode(self, z: jax.Array) -> jax.Array:
        """The logits of the pixels."""
        x = nnx.gelu(self.start(z)).reshape(len(z), 2, 2, 64)
        return self.last(nnx.gelu(self.up2(nnx.gelu(self.up1(x)))))


def negative_bound(model: VAE, x: jax.Array, key: jax.Array) -> jax.Array:
    """How many nats an image costs at most, on average."""
    mean, log_deviation = model.encode(x)
    noise = jax.random.normal(key, mean.shape)
    logits = model.decode(mean + jnp.exp(log_deviation) * noise)
    pixels = optax.sigmoid_binary_cross_entropy(logits, x).sum()
    divergence = (
        0.5 * (mean**2 + jnp.exp(2 * log_deviation) - 1) - log_deviation
    ).sum()
    return (pixels + divergence) / len(x)


@nnx.jit
def train_step(
    model: VAE, optimizer: nnx.Optimizer, x: jax.Array, key: jax.Array
) -> jax.Array:
    """One step of the optimizer, in place; returns the bound."""
    bound, gradients = nnx.value_and_grad(negative_bound)(model, x, key)
    optimizer.update(model, gradients)
    return bound


@nnx.jit
def evaluate(model: VAE, x: jax.Array, key: jax.Array) -> jax.Array:
    """The bound, of 16 draws of the latents."""
    return jax.vmap(lambda key: negative_bound(model, x, key))(
        jax.random.split(key, 16)
    ).mean()


def digits() -> tuple[jax.Array, jax.Array]:
    """Training and held-out images."""
    images = sklearn.datasets.load_digits().images / 16
    images = np.random.default_rng(SEED).permutation(images)[..., None]
    images = jnp.asarray(images, jnp.float32)
    return images[HELD_OUT:], images[:HELD_OUT]


def independent_pixels(train: jax.Array, test: jax.Array) -> float:
    """The nats that a test image costs if each pixel only has the training mean."""
    mean = jnp.clip(train.mean(0), 1e-3, 1 - 1e-3)
    return float(
        -(test * jnp.log(mean) + (1 - test) * jnp.log1p(-mean)).sum() / len(test)
    )


def show(model: VAE, test: jax.Array) -> Image.Image:
    """Rows of held-out images, of what the model makes of each, and of samples."""
    shown = test[:16]
    z = jax.random.normal(jax.random.key(SEED + 1), (32, LATENT))
    made = nnx.sigmoid(model.decode(jnp.concatenate([model.encode(shown)[0], z])))
    return pictures.tiles(np.concatenate([shown, made])[..., 0], 16)


def main() -> int:
    """Trains, and writes the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=pathlib.Path, default="demo_out/vae.png")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error("--epochs must be at least 1")

    train, test = digits()
    baseline = independent_pixels(train, test)
    print(f"independent pixels: {baseline:.2f} nats for a held-out image")
    model = VAE(nnx.Rngs(SEED))
    optimizer = nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)
    rng, key = np.random.default_rng(SEED), jax.random.key(SEED)
    start, trained, held_out = time.perf_counter(), [], []
    for epoch in range(1, args.epochs + 1):
        bounds = []
        for batch in rng.permutation(len(train)).reshape(-1, BATCH):
            key, drawn = jax.random.split(key)
            bounds.append(train_step(model, optimizer, train[batch], drawn))
        trained.append(float(np.mean(bounds)))
        held_out.append(float(evaluate(model, test, jax.random.key(SEED))))
        if epoch % 5 == 0 or epoch == args.epochs:
            seconds = time.perf_counter() - start
            print(f"epoch {epoch:3}: at most {held_out[-1]:.2f} nats, {seconds:.1f} s")
    print(f"bound: {held_out[0]:.2f} before, {held_out[-1]:.2f} after")
    lines = {
        "training": trained,
        "held-out": held_out,
        "independent pixels": [baseline] * args.epochs,
    }
    bottom = 0.9 * min(trained + held_out)
    pictures.save(
        [pictures.curves("nats", lines, bottom=bottom), show(model, test)],
        args.out,
        "bounds; held-out images, their reconstructions, two rows of samples",
    )
    if not held_out[-1] < baseline:
        print("the model is no better than independent pixels", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
