"""One changed import: the same training, step by step, in less time.

A decoder written for Flax NNX is trained for 20 steps twice: with Flax's own
`ConvTranspose`, and with that of `jax_transconv.nn.nnx`, which takes the same arguments
and parameters. Nothing else differs. The program prints both losses and the time of a
step, and fails unless the losses agree at every step.

    python examples/one_import.py
    python examples/one_import.py --steps 20 --size 32 --width 64
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jax_transconv.nn.nnx

BATCH = 16
LATENT = 16
SEED = 0
# Relative difference of two losses whose sums run in another order, after some steps.
ALLOWED = 1e-3


class Decoder(nnx.Module):
    """Latent vectors (N, LATENT) to images (N, size, size, 3).

    Args:
        size: side of an image, a multiple of 8.
        width: channels of the last layer but one; those before have 2 and 4 times.
        layer: Flax's `ConvTranspose`, or what stands in for it.
        rngs: the generator of the initial weights.
    """

    def __init__(
        self, size: int, width: int, layer: Callable[..., nnx.Module], rngs: nnx.Rngs
    ) -> None:
        self.start = (size // 8, size // 8, 4 * width)
        self.dense = nnx.Linear(LATENT, int(np.prod(self.start)), rngs=rngs)
        self.up1 = layer(4 * width, 2 * width, (4, 4), strides=(2, 2), rngs=rngs)
        self.up2 = layer(2 * width, width, (4, 4), strides=(2, 2), rngs=rngs)
        self.up3 = layer(width, 3, (4, 4), strides=(2, 2), rngs=rngs)

    def __call__(self, z: jax.Array) -> jax.Array:
        """Applies the decoder."""
        x = self.dense(z).reshape(z.shape[0], *self.start)
        for up in (self.up1, self.up2):
            x = up(nnx.relu(x))
        return nnx.sigmoid(self.up3(nnx.relu(x)))


def images(size: int) -> tuple[jax.Array, jax.Array]:
    """Latents, and a picture of a coloured disc for each, which the decoder learns."""
    rng = np.random.default_rng(SEED)
    z = rng.standard_normal((BATCH, LATENT)).astype(np.float32)
    y, x = np.mgrid[0:size, 0:size] / size
    discs = []
    for row in 0.5 + 0.1 * z:
        inside = (y - row[0]) ** 2 + (x - row[1]) ** 2 < (0.4 * row[2]) ** 2
        discs.append(inside[..., None] * row[3:6])
    return jnp.asarray(z), jnp.asarray(np.clip(discs, 0, 1), jnp.float32)


def train(
    layer: Callable[..., nnx.Module], args: argparse.Namespace
) -> tuple[list[float], float]:
    """Trains from the one seed; returns the losses and the median time of a step."""
    model = Decoder(args.size, args.width, layer, nnx.Rngs(SEED))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    z, target = images(args.size)

    @nnx.jit
    def step(
        model: Decoder, optimizer: nnx.Optimizer, z: jax.Array, target: jax.Array
    ) -> jax.Array:
        loss, gradients = nnx.value_and_grad(
            lambda model: ((model(z) - target) ** 2).mean()
        )(model)
        optimizer.update(model, gradients)
        return loss

    losses, times = [], []
    for _ in range(args.steps):
        start = time.perf_counter()
        losses.append(float(step(model, optimizer, z, target)))  # waits
        times.append(time.perf_counter() - start)
    return losses, statistics.median(times[1:])  # the first one compiles


def main() -> int:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", type=int, default=64, help="side of an image")
    parser.add_argument("--width", type=int, default=32, help="channels")
    args = parser.parse_args()
    if args.steps < 2 or args.size < 8 or args.size % 8 or args.width < 1:
        parser.error("--steps must be at least 2, --size a multiple of 8, --width 1")

    theirs, slow = train(nnx.ConvTranspose, args)
    ours, fast = train(jax_transconv.nn.nnx.ConvTranspose, args)
    print("step  flax      jax_transconv")
    for number, losses in enumerate(zip(theirs, ours, strict=True)):
        print(f"{number:4}  {losses[0]:.6f}  {losses[1]:.6f}")
    worst = max(abs(a - b) / a for a, b in zip(theirs, ours, strict=True))
    print(f"largest relative difference of a loss: {worst:.1e}")
    print(
        f"a step on {jax.devices()[0].device_kind}: flax {1e3 * slow:.1f} ms, "
        f"jax_transconv {1e3 * fast:.1f} ms, {slow / fast:.1f} times as fast"
    )
    if not worst <= ALLOWED:
        print(f"the losses differ by more than {ALLOWED}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
