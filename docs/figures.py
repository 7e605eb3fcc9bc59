"""Draws the pictures of `docs/semantics.md` from the library's own geometry.

    python docs/figures.py           writes docs/images/*.svg
    python docs/figures.py --check   draws them anew and fails if one has changed

Which position meets which is read off `Spec`, as the kernels get it; sizes and counts
are those of `conv_transpose1d` and `conv_transpose2d` themselves.
"""

from __future__ import annotations

import argparse
import io
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from jax_transconv import conv_transpose1d, conv_transpose2d
from jax_transconv.spec import Spec, parse_geometry

IMAGES = pathlib.Path(__file__).parent / "images"
COLOURS = ("#3b6fb6", "#c8553d", "#4f9d69", "#8b5fbf")  # one for each input position
GREY = "#9a9a9a"

plt.rcParams.update(
    {
        "font.size": 9,
        "svg.fonttype": "none",  # text stays text, and the file small
        "svg.hashsalt": "jax_transconv",
    }
)


def spec_of(n: int, k: int, **arguments: Any) -> Spec:
    """The problem of one axis, as `conv_transpose1d` makes it: an image of height 1."""
    pairs = {
        "stride": lambda s: (1, s),
        "dilation": lambda d: (1, d),
        "output_padding": lambda q: (0, q),
        "padding": lambda p: ((0, 0), p) if isinstance(p, tuple) else (0, p),
    }
    arguments = {name: pairs[name](value) for name, value in arguments.items()}
    x = jax.ShapeDtypeStruct((1, 1, 1, n), "float32")
    w = jax.ShapeDtypeStruct((1, 1, 1, k), "float32")
    return parse_geometry(x, w, **arguments)


def sources(spec: Spec) -> tuple[list[tuple[int, int, int]], int, int]:
    """Who meets whom on the last axis.

    Returns:
        (input position, tap, position in the full result), then the first position that
        is kept, and the one after the last.
    """
    (n, k), g = (spec.in_size[1], spec.kernel_size[1]), spec.geometry
    lo = g.crop[1][0]
    meets = [
        (i, tap, g.stride[1] * i + g.dilation[1] * tap)
        for i in range(n)
        for tap in range(k)
    ]
    return meets, lo, lo + spec.out_size[1]


def counts(n: int, k: int, **arguments: Any) -> list[int]:
    """How many products each output position has, computed by the library."""
    if isinstance(arguments.get("padding"), tuple):
        arguments["padding"] = (arguments["padding"],)
    y = conv_transpose1d(jnp.ones((1, 1, n)), jnp.ones((1, 1, k)), **arguments)
    return [round(v) for v in np.asarray(y)[0, 0].tolist()]


def _box(ax: Any, x: float, y: float, text: str, **style: Any) -> None:
    style = {"facecolor": "white", "edgecolor": "#333333", "linewidth": 1.0} | style
    ax.add_patch(Rectangle((x - 0.4, y - 0.3), 0.8, 0.6, **style))
    ax.text(x, y, text, ha="center", va="center", color=style["edgecolor"])


def axis(ax: Any, title: str, n: int, k: int, **arguments: Any) -> None:
    """One axis: the kernel of each input position, and what is kept of their sum."""
    spec = spec_of(n, k, **arguments)
    meets, start, stop = sources(spec)
    found = [sum(f == o for _, _, f in meets) for o in range(start, stop)]
    if found != counts(n, k, **arguments):
        raise AssertionError(f"{title}: drawn {found}, computed otherwise")
    full = max(f for _, _, f in meets) + 1
    for i, tap, f in meets:
        _box(ax, f, n - i, f"w{tap}", edgecolor=COLOURS[i], facecolor=COLOURS[i] + "22")
    for i in range(n):
        ax.text(-2.2, n - i, f"x{i}", color=COLOURS[i], ha="center", va="center")
    for o in range(min(start, 0), max(stop, full)):
        kept = start <= o < stop
        style: dict[str, Any] = {"facecolor": "#fff3c4"} if o < full and o >= 0 else {}
        if not kept:
            style = {"edgecolor": GREY, "linestyle": ":"}
        elif not style:
            style = {"linestyle": "--"}
        _box(ax, o, -0.25, f"y{o - start}" if kept else "cut", **style)
    ax.set_title(f"{title}: length {stop - start}", loc="left", fontsize=9)


def axes_figure(panels: list[tuple[str, dict[str, Any]]], n: int, k: int) -> Any:
    """Several problems of one axis below each other, on one scale."""
    widest = max(
        max(f for _, _, f in sources(spec_of(n, k, **a))[0]) for _, a in panels
    )
    height = 0.42 * (n + 2.4)
    size = (0.44 * (widest + 6), height * len(panels))
    figure, rows = plt.subplots(len(panels), 1, figsize=size, squeeze=False)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.97, hspace=0.16)
    for ax, (title, arguments) in zip(rows[:, 0], panels, strict=True):
        axis(ax, title, n, k, **arguments)
        ax.set(xlim=(-2.8, widest + 2.8), ylim=(-0.8, n + 0.6))
        ax.axis("off")
    return figure


def stride() -> Any:
    """Strides 1 to 4 of a kernel of 3."""
    return axes_figure([(f"stride {s}", {"stride": s}) for s in (1, 2, 3, 4)], 2, 3)


def dilation() -> Any:
    """Dilation, and dilation with a stride."""
    panels = [
        (f"dilation {d}, stride {s}", {"dilation": d, "stride": s})
        for d, s in ((1, 1), (2, 1), (2, 2), (3, 2))
    ]
    return axes_figure(panels, 2, 3)


def padding() -> Any:
    """What each form of padding keeps of one result."""
    cases: list[dict[str, Any]] = [
        {},
        {"padding": 1},
        {"padding": 1, "output_padding": 1},
        {"padding": (0, 2)},
        {"padding": (-1, 1)},
    ]
    panels = [
        (", ".join(f"{name} {value}" for name, value in c.items()) or "padding 0", c)
        for c in cases
    ]
    return axes_figure([(t, {"stride": 2} | c) for t, c in panels], 3, 3)


def overlap() -> Any:
    """How many products meet in each output pixel, for three layers of stride 2."""
    layers = [
        (
            "kernel 3, padding 1, output_padding 1",
            3,
            {"padding": 1, "output_padding": 1},
        ),
        ("kernel 4, padding 1", 4, {"padding": 1}),
        ("kernel 2", 2, {}),
    ]
    figure, axes = plt.subplots(1, 3, figsize=(8.4, 3.1))
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.9, wspace=0.05)
    for ax, (title, k, arguments) in zip(axes, layers, strict=True):
        x, w = jnp.ones((1, 1, 3, 3)), jnp.ones((1, 1, k, k))
        y = np.asarray(conv_transpose2d(x, w, stride=2, **arguments))[0, 0]
        for (row, column), value in np.ndenumerate(y):
            shade = matplotlib.colormaps["Blues"](0.1 + 0.15 * value)
            ax.add_patch(Rectangle((column, row), 1, 1, fc=shade, ec="white"))
            ax.text(column + 0.5, row + 0.5, round(value), ha="center", va="center")
        h, wd = y.shape
        ax.set(xlim=(0, wd), ylim=(h, 0), aspect="equal")
        ax.set_title(f"{title}: {h}x{wd}", fontsize=9)
        ax.axis("off")
    return figure


FIGURES = {f.__name__: f for f in (stride, dilation, padding, overlap)}


def render(name: str) -> str:
    """The SVG of one picture; the same text on every run of one matplotlib."""
    figure = FIGURES[name]()
    out = io.StringIO()
    figure.savefig(out, format="svg", facecolor="white", metadata={"Date": None})
    plt.close(figure)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def changed(name: str, text: str) -> bool:
    """Whether a picture differs from its file, as far as one can tell."""
    path = IMAGES / f"{name}.svg"
    old = path.read_text() if path.exists() else ""
    if f"Matplotlib v{matplotlib.__version__}," in old:
        return old != text
    # Another version may place a line otherwise: compare what is written there.
    words = [[t for t in s.split("<") if t.startswith("text ")] for s in (old, text)]
    return [t.split(">")[-1] for t in words[0]] != [t.split(">")[-1] for t in words[1]]


def main() -> int:
    """Writes the pictures, or compares them with those that are there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    IMAGES.mkdir(exist_ok=True)
    stale = []
    for name in FIGURES:
        text = render(name)
        if not check:
            (IMAGES / f"{name}.svg").write_text(text)
        elif changed(name, text):
            stale.append(name)
    if stale:
        print(
            f"changed: {', '.join(stale)}; run python docs/figures.py", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
