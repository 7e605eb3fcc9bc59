"""A trained PyTorch generator in JAX: the same images, from the same weights.

A generator in the manner of DCGAN is written in PyTorch and once more in Flax NNX, with
`jax_transconv.nn.nnx.ConvTranspose2d`, whose weights have PyTorch's axes. After a few
steps of training in PyTorch, so that weights and running moments are not those of the
start, `jax_transconv.porting.to_flax` carries the state dict over. The program fails
unless the images, and the state dict carried back, are equal.

    python examples/generator_from_torch.py --out demo_out/generator_from_torch.png
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from PIL import Image

from jax_transconv import porting
from jax_transconv.nn.nnx import ConvTranspose2d

LATENT = 16
IMAGES = 16
SEED = 0
ALLOWED = 1e-5  # of the largest possible value, 1: float32 sums in another order

# Where each layer of the JAX model is found in the PyTorch one.
LAYERS = {
    "up1": porting.conv_transpose2d("0"),
    "norm1": porting.norm("1"),
    "up2": porting.conv_transpose2d("3"),
    "norm2": porting.norm("4"),
    "up3": porting.conv_transpose2d("6"),
    "norm3": porting.norm("7"),
    "up4": porting.conv_transpose2d("9"),
}


def torch_generator(width: int) -> torch.nn.Sequential:
    """Latents (N, LATENT, 1, 1) to images (N, 3, 32, 32)."""

    def up(c_in: int, c_out: int, *geometry: int) -> list[torch.nn.Module]:
        layer = torch.nn.ConvTranspose2d(c_in, c_out, 4, *geometry, bias=False)
        return [layer, torch.nn.BatchNorm2d(c_out), torch.nn.ReLU()]

    return torch.nn.Sequential(
        *up(LATENT, 4 * width),
        *up(4 * width, 2 * width, 2, 1),
        *up(2 * width, width, 2, 1),
        torch.nn.ConvTranspose2d(width, 3, 4, 2, 1),
        torch.nn.Tanh(),
    )


class Generator(nnx.Module):
    """The same in JAX: latents (N, LATENT) to images (N, 32, 32, 3)."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        def up(c_in: int, c_out: int, *strides: int, padding: int) -> ConvTranspose2d:
            return ConvTranspose2d(
                c_in, c_out, 4, *strides, padding=padding, use_bias=False, rngs=rngs
            )

        def norm(channels: int) -> nnx.BatchNorm:
            return nnx.BatchNorm(channels, use_running_average=True, rngs=rngs)

        self.up1, self.norm1 = up(LATENT, 4 * width, padding=0), norm(4 * width)
        self.up2, self.norm2 = up(4 * width, 2 * width, 2, padding=1), norm(2 * width)
        self.up3, self.norm3 = up(2 * width, width, 2, padding=1), norm(width)
        self.up4 = ConvTranspose2d(width, 3, 4, 2, padding=1, rngs=rngs)

    def __call__(self, z: jax.Array) -> jax.Array:
        """Applies the generator."""
        x = nnx.relu(self.norm1(self.up1(z[:, None, None])))
        x = nnx.relu(self.norm2(self.up2(x)))
        x = nnx.relu(self.norm3(self.up3(x)))
        return jnp.tanh(self.up4(x))


def train(generator: torch.nn.Module, steps: int) -> None:
    """Teaches the generator discs; any training would do."""
    optimizer = torch.optim.Adam(generator.parameters(), 1e-2)
    rows, columns = np.mgrid[:32, :32]
    disc = (rows - 16) ** 2 + (columns - 16) ** 2 < 100
    target = torch.tensor(np.where(disc, 0.8, -0.8), dtype=torch.float32)
    for _ in range(steps):
        optimizer.zero_grad()
        made = generator(torch.randn(IMAGES, LATENT, 1, 1))
        ((made - target) ** 2).mean().backward()
        optimizer.step()


def from_torch(generator: torch.nn.Module, width: int) -> Generator:
    """The JAX model with the weights of the PyTorch one."""
    model = Generator(width, nnx.Rngs(SEED))
    state = nnx.state(model)
    variables = porting.to_flax(generator.state_dict(), LAYERS, nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, variables)
    nnx.update(model, state)
    return model


def save_picture(theirs: np.ndarray, ours: np.ndarray, path: pathlib.Path) -> None:
    """A row of PyTorch's images above a row of ours."""
    rows = [np.concatenate(list(images), axis=1) for images in (theirs, ours)]
    pixels = np.uint8(127.5 * (np.concatenate(rows) + 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).resize(
        (2 * pixels.shape[1], 2 * pixels.shape[0]), Image.Resampling.NEAREST
    ).save(path)
    print(f"{path}: PyTorch above, JAX below")


def main() -> int:
    """Trains, carries over, compares, and writes the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="of training, in PyTorch")
    parser.add_argument("--width", type=int, default=32, help="channels")
    parser.add_argument(
        "--out", type=pathlib.Path, default="demo_out/generator_from_torch.png"
    )
    args = parser.parse_args()
    if args.steps < 0 or args.width < 1:
        parser.error("--steps must be at least 0, and --width 1")

    torch.manual_seed(SEED)
    generator = torch_generator(args.width)
    train(generator, args.steps)
    generator.eval()
    model = from_torch(generator, args.width)

    z = torch.randn(IMAGES, LATENT)
    with torch.no_grad():
        theirs = generator(z[..., None, None]).permute(0, 2, 3, 1).numpy()
    with jax.default_matmul_precision("highest"):
        ours = np.asarray(nnx.jit(lambda model, z: model(z))(model, jnp.asarray(z)))
    difference = float(np.abs(ours - theirs).max())
    print(f"largest difference of a pixel: {difference:.1e}")

    back = porting.to_torch(nnx.to_pure_dict(nnx.state(model)), LAYERS, tensors="torch")
    state = generator.state_dict()
    round_trip = all(torch.equal(array, state[name]) for name, array in back.items())
    print(f"state dict carried back: {'equal' if round_trip else 'different'}")
    save_picture(theirs, ours, args.out)
    return 0 if difference <= ALLOWED and round_trip else 1


if __name__ == "__main__":
    sys.exit(main())
