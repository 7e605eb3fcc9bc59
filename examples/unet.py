"""A U-Net learns to find shapes in noise, in seconds.

The network [1]_ halves an image twice and enlarges it twice, by transposed convolutions
with kernel and stride 2, `jax_transconv.nn.nnx.ConvTranspose2d`, each followed by the
features of the same size on the way down. It tells background, discs and squares apart
in noisy images. The program draws the curves of training with a few predictions, and
fails unless the held-out accuracy beats calling everything background.

    python examples/unet.py --out demo_out/unet.png

.. [1] O. Ronneberger, P. Fischer and T. Brox, "U-Net: convolutional networks for
   biomedical image segmentation", MICCAI 2015, arXiv:1505.04597.
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
from flax import nnx
from PIL import Image

from jax_transconv.nn.nnx import ConvTranspose2d

CLASSES = 3  # background, disc, square
BATCH = 16
HELD_OUT = 64
RATE = 3e-3
SEED = 0
COLOURS = np.array([[40, 40, 40], [230, 120, 60], [70, 140, 220]], np.uint8)


class Block(nnx.Module):
    """Two 3x3 convolutions, each with a rectifier."""

    def __init__(self, c_in: int, c_out: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(c_in, c_out, (3, 3), rngs=rngs)
        self.second = nnx.Conv(c_out, c_out, (3, 3), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the block."""
        return nnx.relu(self.second(nnx.relu(self.first(x))))


class UNet(nnx.Module):
    """Images (N, H, W, 1) to logits (N, H, W, CLASSES), with H and W in fours.

    Args:
        width: channels at full size; twice and four times as many below.
        rngs: the generator of the initial weights.
    """

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.down1 = Block(1, width, rngs)
        self.down2 = Block(width, 2 * width, rngs)
        self.bottom = Block(2 * width, 4 * width, rngs)
        self.up2 = ConvTranspose2d(4 * width, 2 * width, 2, 2, rngs=rngs)
        self.join2 = Block(4 * width, 2 * width, rngs)
        self.up1 = ConvTranspose2d(2 * width, width, 2, 2, rngs=rngs)
        self.join1 = Block(2 * width, width, rngs)
        self.last = nnx.Conv(width, CLASSES, (1, 1), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the network."""
        full = self.down1(x)
        half = self.down2(nnx.max_pool(full, (2, 2), (2, 2)))
        x = self.bottom(nnx.max_pool(half, (2, 2), (2, 2)))
        x = self.join2(jnp.concatenate([half, self.up2(x)], axis=-1))
        x = self.join1(jnp.concatenate([full, self.up1(x)], axis=-1))
        return self.last(x)


def scenes(
    count: int, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images (N, size, size, 1) of two shapes each, and the classes of pixels."""
    rows, columns = np.mgrid[:size, :size]
    labels = np.zeros((count, size, size), np.int32)
    for label in labels:
        for shape in (1, 2):
            row, column = rng.uniform(0.2 * size, 0.8 * size, 2)
            radius = rng.uniform(0.1 * size, 0.25 * size)
            distances = abs(rows - row), abs(columns - column)
            far = np.hypot(*distances) if shape == 1 else np.maximum(*distances)
            label[far < radius] = shape
    # Both shapes are equally bright: only their outlines tell them apart.
    noise = rng.normal(0, 0.3, labels.shape)
    return ((labels > 0) + noise).astype(np.float32)[..., None], labels


def cross_entropy(model: UNet, x: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over the pixels."""
    return optax.softmax_cross_entropy_with_integer_labels(model(x), labels).mean()


@nnx.jit
def train_step(
    model: UNet, optimizer: nnx.Optimizer, x: jax.Array, labels: jax.Array
) -> jax.Array:
    """One step of the optimizer, in place; returns the loss."""
    loss, gradients = nnx.value_and_grad(cross_entropy)(model, x, labels)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def predict(model: UNet, x: jax.Array) -> jax.Array:
    """The classes of the pixels."""
    return model(x).argmax(-1)


def predictions(x: np.ndarray, truth: np.ndarray, found: np.ndarray) -> Image.Image:
    """Rows of images, of their classes, and of the classes found."""
    gray = np.uint8(255 * np.clip((x + 0.5) / 2, 0, 1)).repeat(3, axis=-1)
    rows = [np.concatenate(list(r), 1) for r in (gray, COLOURS[truth], COLOURS[found])]
    return Image.fromarray(np.concatenate(rows))


def main() -> int:
    """Trains, and writes the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--size", type=int, default=32, help="side of an image")
    parser.add_argument("--width", type=int, default=16, help="channels")
    parser.add_argument("--out", type=pathlib.Path, default="demo_out/unet.png")
    args = parser.parse_args()
    if args.steps < 1 or args.size < 8 or args.size % 4 or args.width < 1:
        parser.error("--steps must be at least 1, --size a multiple of 4, --width 1")

    rng = np.random.default_rng(SEED)
    test, truth = scenes(HELD_OUT, args.size, rng)
    model = UNet(args.width, nnx.Rngs(SEED))
    optimizer = nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)
    losses, accuracies, start = [], [], time.perf_counter()
    for step in range(1, args.steps + 1):
        losses.append(
            float(train_step(model, optimizer, *scenes(BATCH, args.size, rng)))
        )
        if step % 10 == 0 or step == args.steps:
            accuracies.append(float((predict(model, test) == truth).mean()))
        if step % 50 == 0 or step == args.steps:
            seconds = time.perf_counter() - start
            print(
                f"step {step:4}: loss {losses[-1]:.3f}, held-out accuracy "
                f"{accuracies[-1]:.3f}, {seconds:.1f} s"
            )
    background = float((truth == 0).mean())
    print(f"calling everything background: {background:.3f}")
    print(f"loss: {losses[0]:.3f} before, {losses[-1]:.3f} after")
    pictures.save(
        [
            pictures.curves("loss", {"": losses}, top=losses[0]),
            pictures.curves("held-out accuracy", {"": accuracies}, top=1),
            predictions(test[:8], truth[:8], np.asarray(predict(model, test[:8]))),
        ],
        args.out,
        "loss, accuracy, and images, truth and predictions",
    )
    return 0 if accuracies[-1] > background else 1


if __name__ == "__main__":
    sys.exit(main())
