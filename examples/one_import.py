"""One changed import: the same training, step by step, in less time.

A decoder written for Flax NNX is trained for 20 steps three times: with Flax's own
`ConvTranspose`; with that of `jax_transconv.nn.nnx`, which takes the same arguments and
parameters; and with Flax's own again, the loss being passed through `accelerate`.
Nothing else differs. The program prints and draws the losses and the time of a step,
and fails unless the losses agree at every step and a step takes less time.

    python examples/one_import.py
    python examples/one_import.py --steps 20 --size 32 --width 64
"""

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pictures
from flax import nnx

import jax_transconv.nn.nnx
from jax_transconv import accelerate

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
    layer: Callable[..., nnx.Module],
    args: argparse.Namespace,
    transform: Callable[[Callable], Callable] = lambda loss: loss,
) -> tuple[list[float], float]:
    """Trains from the one seed; returns the losses and the median time of a step."""
    model = Decoder(args.size, args.width, layer, nnx.Rngs(SEED))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    z, target = images(args.size)

    @nnx.jit
    def step(
        model: Decoder, optimizer: nnx.Optimizer, z: jax.Array, target: jax.Array
    ) -> jax.Array:
        loss = transform(lambda model: ((model(z) - target) ** 2).mean())
        loss, gradients = nnx.value_and_grad(loss)(model)
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
    parser.add_argument("--out", type=pathlib.Path, default="demo_out/one_import.png")
    args = parser.parse_args()
    if args.steps < 2 or args.size < 8 or args.size % 8 or args.width < 1:
        parser.error("--steps must be at least 2, --size a multiple of 8, --width 1")

    flax, slow = train(nnx.ConvTranspose, args)
    ours, fast = train(jax_transconv.nn.nnx.ConvTranspose, args)
    switched, as_fast = train(nnx.ConvTranspose, args, accelerate)
    print("step  flax      one import  accelerate")
    for number, (a, b, c) in enumerate(zip(flax, ours, switched, strict=True)):
        print(f"{number:4}  {a:.6f}  {b:.6f}    {c:.6f}")
    worst = max(
        abs(loss - expected) / expected
        for losses in (ours, switched)
        for loss, expected in zip(losses, flax, strict=True)
    )
    print(f"largest relative difference of a loss: {worst:.1e}")
    print(f"a step on {jax.devices()[0].device_kind}: flax {1e3 * slow:.1f} ms")
    for name, seconds in (("one import", fast), ("accelerate", as_fast)):
        print(f"  {name} {1e3 * seconds:.1f} ms, {slow / seconds:.1f} times as fast")
    print(f"loss: {ours[0]:.6f} before, {ours[-1]:.6f} after")
    milliseconds = {
        "flax": 1e3 * slow,
        "one import": 1e3 * fast,
        "accelerate": 1e3 * as_fast,
    }
    dots = {"one import": ours, "accelerate": switched}
    pictures.save(
        [
            pictures.curves("loss", {"flax": flax}, dots=dots),
            pictures.bars("a step, median", milliseconds, "ms"),
        ],
        args.out,
        "the losses, and the time of a step",
    )
    if not worst <= ALLOWED:
        print(f"the losses differ by more than {ALLOWED}", file=sys.stderr)
        return 1
    if not max(fast, as_fast) < slow:
        print("a step is no faster", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
