"""Trains FSRCNN, a x3 super-resolution network, on photographs, on a CPU in a minute.

The network [1]_ works at low resolution and enlarges in its last layer, a 9x9
transposed convolution with stride 3, here `jax_transconv.nn.nnx.ConvTranspose2d`. As in
later work it learns what is missing from the bicubic enlargement, not the whole
picture; that shortens the training from hours to a minute.

The photographs ship inside the scikit-image package. Two are kept for the test, and the
program fails unless the network beats bicubic interpolation on both. At the end it
times one training step with this layer, and with `flax.nnx.ConvTranspose` in its place.

    python examples/fsrcnn.py --out demo_out/fsrcnn.png

.. [1] C. Dong, C. C. Loy and X. Tang, "Accelerating the super-resolution convolutional
   neural network", ECCV 2016, arXiv:1608.00367.
"""

import argparse
import functools
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import skimage.data
from flax import nnx
from jax.nn.initializers import normal
from PIL import Image, ImageDraw

from jax_transconv.nn.nnx import ConvTranspose2d

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

SCALE = 3
PATCH = 24  # side of a low-resolution training patch
BATCH = 16
STEPS = 100  # an epoch
RATE = 2e-3
SEED = 0

TRAINING = ("astronaut", "rocket", "stereo_motorcycle", "camera", "coins", "brick")
HELD_OUT = ("chelsea", "coffee")
# Top left corner, at full resolution, of the square that the picture shows.
CORNERS = {"chelsea": (45, 105), "coffee": (105, 225)}
VIEW = 120  # its side

Pair = tuple[np.ndarray, np.ndarray]


class Flax(nnx.Module):
    """Flax's own transposed convolution with the geometry of the last layer."""

    def __init__(self, features: int, size: int, *, rngs: nnx.Rngs) -> None:
        # Flax pads the stretched input: a crop of 3 is size - 1 - 3 here.
        pad = size - 1 - 3
        self.inner = nnx.ConvTranspose(
            features,
            1,
            (size, size),
            (SCALE, SCALE),
            padding=[(pad, pad), (pad, pad)],
            kernel_init=normal(1e-3),
            rngs=rngs,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the layer."""
        return self.inner(x)


class FSRCNN(nnx.Module):
    """FSRCNN(d=56, s=12, m=4), on top of the bicubic enlargement.

    Args:
        last: makes the last layer from its number of input channels, its kernel size
            and the generator.
        rngs: the generator of the initial weights.
    """

    def __init__(self, last: Callable[..., nnx.Module], *, rngs: nnx.Rngs) -> None:
        def conv(c_in: int, c_out: int, size: int) -> nnx.Conv:
            return nnx.Conv(c_in, c_out, (size, size), rngs=rngs)

        wide, narrow, depth = 56, 12, 4
        self.layers = nnx.List(
            [
                conv(1, wide, 5),
                conv(wide, narrow, 1),
                *(conv(narrow, narrow, 3) for _ in range(depth)),
                conv(narrow, wide, 1),
            ]
        )
        self.slopes = nnx.List(
            [nnx.Param(jnp.full(1, 0.25)) for _ in range(len(self.layers))]
        )
        self.last = last(wide, 9, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Enlarges (N, H, W, 1) to (N, 3 H, 3 W, 1)."""
        n, h, w, c = x.shape
        enlarged = jax.image.resize(x, (n, SCALE * h, SCALE * w, c), "cubic")
        for layer, slope in zip(self.layers, self.slopes, strict=True):
            x = layer(x)
            x = jnp.where(x > 0, x, slope[...] * x)
        return enlarged + self.last(x)


def ours(backend: str) -> Callable[..., nnx.Module]:
    """The last layer as this package has it: (H - 1) * 3 - 2 * 3 + 9 is 3 H."""
    return functools.partial(_ours, backend)


def _ours(backend: str, c_in: int, size: int, *, rngs: nnx.Rngs) -> nnx.Module:
    return ConvTranspose2d(
        c_in,
        1,
        size,
        strides=SCALE,
        padding=SCALE,
        kernel_init=normal(1e-3),  # as in the paper: begin at bicubic
        backend=backend,
        rngs=rngs,
    )


# Pictures.


def photograph(name: str) -> Image.Image:
    """A photograph of scikit-image, cut to a multiple of the scale."""
    pixels = getattr(skimage.data, name)()
    if isinstance(pixels, tuple):  # left, right, disparity
        pixels = pixels[0]
    height, width = (n - n % SCALE for n in pixels.shape[:2])
    return Image.fromarray(pixels[:height, :width]).convert("RGB")


def resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Bicubic, with antialiasing where it shrinks."""
    return image.resize(size, Image.Resampling.BICUBIC)


def shrink(image: Image.Image) -> Image.Image:
    """The low-resolution picture: a third in each direction, 8 bits a channel."""
    return resize(image, (image.width // SCALE, image.height // SCALE))


def luma(image: Image.Image) -> np.ndarray:
    """ITU-R BT.601 luma in [16, 235] / 255, on which the field measures."""
    rgb = np.asarray(image, np.float32)
    weights = np.array([65.481, 128.553, 24.966], np.float32) / 255**2
    return rgb @ weights + np.float32(16 / 255)


def bicubic(low: np.ndarray) -> np.ndarray:
    """The rival: bicubic enlargement of luma, not rounded."""
    height, width = low.shape
    image = Image.fromarray(low)
    return np.asarray(resize(image, (SCALE * width, SCALE * height)))


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB, without a border of one scale."""
    inside = np.s_[SCALE:-SCALE, SCALE:-SCALE]
    difference = np.clip(a, 0, 1)[inside] - b[inside]
    return -10 * float(np.log10(np.mean(difference**2)))


def pair(name: str) -> Pair:
    """Luma of a photograph, low resolution and full."""
    image = photograph(name)
    return luma(shrink(image)), luma(image)


def batches(pairs: Sequence[Pair], rng: np.random.Generator) -> Iterator[Pair]:
    """Random patches, turned and mirrored, for ever."""
    sizes = np.array([low.size for low, _ in pairs], np.float64)
    while True:
        lows, highs = [], []
        for index in rng.choice(len(pairs), BATCH, p=sizes / sizes.sum()):
            low, high = pairs[index]
            top, left = (int(rng.integers(n - PATCH + 1)) for n in low.shape)
            turns, mirror = int(rng.integers(4)), bool(rng.integers(2))
            for found, image, unit in ((lows, low, 1), (highs, high, SCALE)):
                rows = slice(unit * top, unit * (top + PATCH))
                columns = slice(unit * left, unit * (left + PATCH))
                patch = np.rot90(image[rows, columns], turns)
                found.append(patch[:, ::-1] if mirror else patch)
        yield np.stack(lows)[..., None], np.stack(highs)[..., None]


# Training.


def make_step(model: nnx.Module, rate: optax.Schedule) -> tuple:
    """The functions that train a model and apply it, and the state that they carry."""
    graph, params = nnx.split(model, nnx.Param)
    optimizer = optax.adam(rate)

    @jax.jit
    def step(params, state, low, high):
        def loss(params):
            y = nnx.merge(graph, params)(low)
            return jnp.mean((y - high) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    @jax.jit
    def apply(params, low):
        return nnx.merge(graph, params)(low)

    return step, apply, params, optimizer.init(params)


def progress(items: Iterable[int], label: str, total: int) -> Iterator[int]:
    """A progress bar on a terminal, and nothing elsewhere."""
    if tqdm is not None:
        # disable=None: only if standard error is no terminal.
        yield from tqdm(items, desc=label, total=total, leave=False, disable=None)
        return
    if not sys.stderr.isatty():
        yield from items
        return
    for done, item in enumerate(items):
        bar = "#" * (30 * done // total)
        print(f"\r{label} [{bar:<30}] {done}/{total}", end="", file=sys.stderr)
        yield item
    print("\r\033[K", end="", file=sys.stderr)


def enlarge(apply: Callable, params: nnx.State, low: np.ndarray) -> np.ndarray:
    """The network's picture of luma of (H, W)."""
    return np.asarray(apply(params, low[None, ..., None]))[0, ..., 0]


def train(model: nnx.Module, epochs: int, seconds: float) -> tuple[Callable, nnx.State]:
    """Trains, and prints the held-out PSNR against bicubic after each epoch."""
    rate = optax.cosine_decay_schedule(RATE, epochs * STEPS, alpha=0.02)
    step, apply, params, state = make_step(model, rate)
    stream = batches([pair(name) for name in TRAINING], np.random.default_rng(SEED))
    held_out = {name: pair(name) for name in HELD_OUT}
    rival = {name: psnr(bicubic(low), high) for name, (low, high) in held_out.items()}

    print("PSNR in dB of luma    " + "".join(f"{name:>18}" for name in HELD_OUT))
    print("bicubic               " + "".join(f"{rival[n]:18.2f}" for n in HELD_OUT))
    start = time.perf_counter()
    for epoch in range(1, epochs + 1):
        for _ in progress(range(STEPS), f"epoch {epoch}/{epochs}", STEPS):
            low, high = next(stream)
            params, state, _ = step(params, state, low, high)
        cells = ""
        for name, (low, high) in held_out.items():
            now = psnr(enlarge(apply, params, low), high)
            cells += f"{now:9.2f} ({now - rival[name]:+.2f})"
        elapsed = time.perf_counter() - start
        print(f"epoch {epoch:2d}/{epochs}  {elapsed:5.0f} s {cells:>36}", flush=True)
        if elapsed > seconds and epoch < epochs:
            print(f"stopped: more than {seconds:g} s")
            break
    return apply, params


# Results.


def compare_steps(backend: str, rounds: int = 15) -> None:
    """Times one training step with our last layer and with Flax's, in turns."""
    rng = np.random.default_rng(SEED)
    low = rng.random((BATCH, PATCH, PATCH, 1), np.float32)
    high = rng.random((BATCH, SCALE * PATCH, SCALE * PATCH, 1), np.float32)
    mine = FSRCNN(ours(backend), rngs=nnx.Rngs(SEED))
    theirs = FSRCNN(lambda c, k, rngs: Flax(c, k, rngs=rngs), rngs=nnx.Rngs(SEED))
    # The same weights: Flax does not flip the kernel, and its axes are (h, w, in, out).
    kernel = mine.last.kernel[...]
    theirs.last.inner.kernel[...] = kernel[:, :, ::-1, ::-1].transpose(2, 3, 0, 1)

    runs = {}
    for name, model in {"jax_transconv": mine, "flax.nnx": theirs}.items():
        step, _, params, state = make_step(model, optax.constant_schedule(RATE))
        runs[name] = functools.partial(step, params, state, low, high)
    losses = {name: float(run()[2]) for name, run in runs.items()}
    np.testing.assert_allclose(*losses.values(), rtol=1e-4)

    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(1e3 * (time.perf_counter() - start))
    median = {name: statistics.median(t) for name, t in times.items()}
    print(f"one training step, median of {rounds}, {jax.devices()[0].device_kind}:")
    for name, value in median.items():
        print(f"  {name + '.ConvTranspose':<30} {value:8.2f} ms")
    print(f"  ratio {median['flax.nnx'] / median['jax_transconv']:.2f}")


def draw(path: pathlib.Path, results: dict[str, np.ndarray]) -> None:
    """Writes low resolution, bicubic, ours and the truth, side by side."""
    zoom, gap, head = 2, 8, 22
    side = zoom * VIEW
    titles = ("low resolution", "bicubic", "FSRCNN", "truth")
    width = len(titles) * (side + gap) + gap
    height = len(results) * (side + gap + head) + gap
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (name, y) in enumerate(results.items()):
        truth = photograph(name)
        low = shrink(truth)
        smooth = resize(low, truth.size)
        nearest = low.resize(truth.size, Image.Resampling.NEAREST)
        # Colour is enlarged bicubically, as usual. Both lumas differ by what we gain.
        gain = (y - luma(smooth))[..., None] * (255 * 255 / 219)
        sharp = np.clip(np.asarray(smooth, np.float32) + gain, 0, 255)
        sharp = Image.fromarray(sharp.round().astype(np.uint8))
        top, left = CORNERS[name]
        box = (left, top, left + VIEW, top + VIEW)
        true = luma(truth)
        scores = {"bicubic": psnr(luma(smooth), true), "FSRCNN": psnr(y, true)}
        for column, (title, image) in enumerate(
            zip(titles, (nearest, smooth, sharp, truth), strict=True)
        ):
            view = image.crop(box).resize((side, side), Image.Resampling.NEAREST)
            where = (gap + column * (side + gap), gap + row * (side + gap + head))
            if title in scores:
                title += f"  {scores[title]:.2f} dB"
            pen.text((where[0], where[1] + 2), f"{name}: {title}", "black")
            sheet.paste(view, (where[0], where[1] + head - 4))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    print(f"wrote {path}")


def main() -> int:
    """Runs the demo; 0 if the network beats bicubic on every held-out photograph."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default="demo_out/fsrcnn.png")
    parser.add_argument("--epochs", type=int, default=15, help=f"of {STEPS} steps")
    parser.add_argument(
        "--seconds", type=float, default=100, help="begin no epoch after this long"
    )
    parser.add_argument("--backend", default="auto", help="of the last layer")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {args.epochs}")

    model = FSRCNN(ours(args.backend), rngs=nnx.Rngs(SEED))
    apply, params = train(model, args.epochs, args.seconds)
    results, lost = {}, []
    for name in HELD_OUT:
        low, high = pair(name)
        results[name] = enlarge(apply, params, low)
        if psnr(results[name], high) <= psnr(bicubic(low), high):
            lost.append(name)
    draw(args.out, results)
    compare_steps(args.backend)
    if lost:
        print(f"FSRCNN did not beat bicubic on: {', '.join(lost)}", file=sys.stderr)
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
