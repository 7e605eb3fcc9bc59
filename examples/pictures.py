"""What the examples draw with: curves, bars, tiles, and one picture of several."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw

WIDTH, HEIGHT, MARGIN = 480, 240, 30
COLOURS = [(70, 140, 220), (200, 60, 40), (60, 150, 80)]


def curves(
    title: str,
    lines: Mapping[str, Sequence[float]],
    *,
    dots: Mapping[str, Sequence[float]] | None = None,
    bottom: float = 0.0,
    top: float | None = None,
) -> Image.Image:
    """A plot of values over the steps, with the last of each.

    Args:
        title: above the plot.
        lines: values, as many in each, by name.
        dots: likewise, drawn as dots, for what would hide a line that it equals.
        bottom: the value at the lower edge.
        top: the value at the upper one; by default the largest.
    """
    dots = dots or {}
    every = {**lines, **dots}
    if top is None:
        top = max(map(max, every.values()))
    top = max(top, bottom + 1e-9)
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(picture)
    right, lower = WIDTH - MARGIN, HEIGHT - MARGIN
    draw.rectangle((MARGIN, MARGIN, right, lower), outline="gray")
    draw.text((2, MARGIN - 5), f"{top:.3g}", "black")
    draw.text((2, lower - 5), f"{bottom:.3g}", "black")
    count = max(map(len, every.values()))
    draw.text((right - 60, lower + 8), f"{count} points", "black")
    draw.text((MARGIN, 8), f"{title}:", "black")
    end = MARGIN + draw.textlength(f"{title}:  ")
    for colour, (name, values) in zip(COLOURS, every.items(), strict=False):
        x = np.linspace(MARGIN, right, len(values)).tolist()
        share = np.clip((np.array(values) - bottom) / (top - bottom), 0, 1)
        y = (lower - (lower - MARGIN) * share).tolist()
        points = list(zip(x, y, strict=True))
        if name in dots or len(points) == 1:
            # Where dots equal dots, the later ones are smaller.
            r = 2 * (len(dots) - list(dots).index(name)) if name in dots else 2
            for a, b in points:
                draw.ellipse((a - r, b - r, a + r, b + r), fill=colour)
        else:
            draw.line(points, colour, 2)
        legend = f"{name} {values[-1]:.3g}  "
        draw.text((end, 8), legend, colour)
        end += draw.textlength(legend)
    return picture


def bars(title: str, values: Mapping[str, float], unit: str) -> Image.Image:
    """A bar for each value, by name."""
    row, start = 24, 100
    picture = Image.new("RGB", (WIDTH, 2 * MARGIN + row * len(values)), "white")
    draw = ImageDraw.Draw(picture)
    draw.text((MARGIN, 8), title, "black")
    length = WIDTH - start - 3 * MARGIN
    for number, (name, value) in enumerate(values.items()):
        y = MARGIN + row * number
        end = start + length * value / max(values.values())
        draw.text((MARGIN, y + 4), name, "black")
        draw.rectangle((start, y + 2, end, y + row - 4), COLOURS[number % len(COLOURS)])
        draw.text((end + 6, y + 4), f"{value:.3g} {unit}", "black")
    return picture


def tiles(images: np.ndarray, columns: int) -> Image.Image:
    """Gray images (N, H, W) with values from 0 to 1, in rows, with a border."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), constant_values=0.3)
    n, height, width = padded.shape
    grid = padded.reshape(n // columns, columns, height, width).swapaxes(1, 2)
    return Image.fromarray(
        np.uint8(255 * grid.reshape(n // columns * height, columns * width))
    )


def save(parts: Sequence[Image.Image], path: pathlib.Path, words: str) -> None:
    """Writes the parts, one under the other, at one width, and says what they are."""
    parts = [
        p.resize((WIDTH, p.height * WIDTH // p.width), Image.Resampling.NEAREST)
        for p in parts
    ]
    picture = Image.new("RGB", (WIDTH, sum(p.height for p in parts)))
    top = 0
    for part in parts:
        picture.paste(part, (0, top))
        top += part.height
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
    print(f"{path}: {words}")
