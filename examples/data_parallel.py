"""Data-parallel training over several devices: the losses of one device.

A decoder is trained for some steps on one device, and once more with its batch cut over
all of them; nothing in the model is changed. `jax.jit` cuts the transposed convolutions
as it cuts everything else, and adds up the gradients of the weights. The program prints
the losses, draws them, and fails unless they agree and every device has its share.

A CPU is made into several devices, to show it anywhere; on a machine with several GPUs
say ``--devices 0``.

    python examples/data_parallel.py --devices 4
"""

import argparse
import os
import pathlib
import sys

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--devices", type=int, default=4, help="of a CPU; 0: what there is")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--size", type=int, default=32, help="side of an image")
parser.add_argument("--out", type=pathlib.Path, default="demo_out/data_parallel.png")

if __name__ == "__main__":  # before JAX is imported
    args = parser.parse_args()
    if args.devices < 0 or args.steps < 1 or args.size < 8 or args.size % 8:
        parser.error("--devices 0 or more, --steps 1, --size a multiple of 8")
    if args.devices:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = (
            f"--xla_force_host_platform_device_count={args.devices}"
        )

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import pictures  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from jax_transconv.nn.nnx import ConvTranspose2d  # noqa: E402

LATENT = 16
A_DEVICE = 4  # images in its share of a batch
SEED = 0
ALLOWED = 1e-4  # relative difference of losses whose sums run in another order


class Decoder(nnx.Module):
    """Latents (N, LATENT) to images (N, size, size, 3)."""

    def __init__(self, size: int, rngs: nnx.Rngs) -> None:
        self.side = size // 8
        self.start = nnx.Linear(LATENT, self.side**2 * 64, rngs=rngs)
        self.up1 = ConvTranspose2d(64, 32, 4, 2, padding=1, rngs=rngs)
        self.up2 = ConvTranspose2d(32, 16, 4, 2, padding=1, rngs=rngs)
        self.up3 = ConvTranspose2d(16, 3, 4, 2, padding=1, rngs=rngs)

    def __call__(self, z: jax.Array) -> jax.Array:
        """Applies the decoder."""
        x = self.start(z).reshape(len(z), self.side, self.side, 64)
        x = self.up2(nnx.relu(self.up1(nnx.relu(x))))
        return nnx.sigmoid(self.up3(nnx.relu(x)))


def images(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Latents, and for each a picture of waves that it decides."""
    rng = np.random.default_rng(SEED)
    y, x = np.mgrid[:size, :size] / size
    z = rng.standard_normal((A_DEVICE * jax.device_count(), LATENT), np.float32)
    a, b, phases = z[:, :1, None, None], z[:, 1:2, None, None], z[:, 2:5]
    waves = 0.5 + 0.5 * np.sin(3 * (a * y + b * x) + phases[..., None, None])
    return z, np.moveaxis(waves, 1, -1).astype(np.float32)


@nnx.jit
def train_step(
    model: Decoder, optimizer: nnx.Optimizer, z: jax.Array, target: jax.Array
) -> jax.Array:
    """One step of the optimizer, in place; returns the loss."""

    def mean_square(model: Decoder) -> jax.Array:
        return ((model(z) - target) ** 2).mean()

    loss, gradients = nnx.value_and_grad(mean_square)(model)
    optimizer.update(model, gradients)
    return loss


def train(size: int, steps: int, devices: list) -> tuple[list[float], int]:
    """Trains; returns the losses, and how many devices hold a part of the images."""
    mesh = jax.make_mesh(
        (len(devices),), ("batch",), (jax.sharding.AxisType.Auto,), devices=devices
    )
    everywhere = NamedSharding(mesh, PartitionSpec())
    cut = NamedSharding(mesh, PartitionSpec("batch"))
    model = Decoder(size, nnx.Rngs(SEED))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    for part in (model, optimizer):
        nnx.update(part, jax.device_put(nnx.state(part), everywhere))
    z, target = jax.device_put(images(size), cut)
    losses = [float(train_step(model, optimizer, z, target)) for _ in range(steps)]
    made = nnx.jit(lambda model, z: model(z))(model, z)
    shards = {s.device for s in made.addressable_shards if s.data.shape[0] == A_DEVICE}
    return losses, len(shards)


def main(args: argparse.Namespace) -> int:
    """Trains twice, compares, and writes the picture."""
    devices = jax.devices()
    alone, _ = train(args.size, args.steps, devices[:1])
    together, shares = train(args.size, args.steps, devices)
    print(f"step  1 device  {len(devices)} devices")
    for number, (a, b) in enumerate(zip(alone, together, strict=True)):
        print(f"{number:4}  {a:.6f}  {b:.6f}")
    worst = max(abs(a - b) / a for a, b in zip(alone, together, strict=True))
    print(f"largest relative difference of a loss: {worst:.1e}")
    print(f"{shares} of {len(devices)} devices made a share of the images")
    print(f"loss: {together[0]:.6f} before, {together[-1]:.6f} after")
    dots = {f"{len(devices)} devices": together}
    plot = pictures.curves("loss", {"1 device": alone}, dots=dots)
    pictures.save([plot], args.out, "the losses")
    return 0 if worst <= ALLOWED and shares == len(devices) else 1


if __name__ == "__main__":
    sys.exit(main(args))
