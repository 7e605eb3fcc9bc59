"""The problems of cases.json, each with the way that it is to be run."""

import dataclasses
import json
import math
import pathlib
import re
import zlib

import cases
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Reported:
    """One entry of cases.json: a problem that somebody, somewhere, was hurt by."""

    id: str
    case: cases.Case
    transform: str
    expect: str
    why: str
    entry: dict

    @property
    def extra(self) -> dict:
        return self.entry.get("extra", {})

    @property
    def needs_gpu(self) -> bool:
        return self.entry.get("requires") == "gpu"

    def data(self) -> cases.Data:
        """Operands and cotangent, with the entry's special inputs."""
        case = self.case
        rng = np.random.default_rng(zlib.crc32(self.id.encode()))

        def draw(key, shape):
            return special(rng, self.extra.get(key), shape).astype(
                jnp.dtype(case.dtype)
            )

        return cases.Data(
            draw("x", case.x_shape),
            draw("w", case.weight_shape),
            draw("bias", (case.cout,)) if case.bias else None,
            draw("cotangent", case.out_shape),
        )


def special(rng: np.random.Generator, kind: str | None, shape) -> np.ndarray:
    """An input by the words of cases.json; without a word, standard normal."""
    if kind is None:
        return rng.standard_normal(shape)
    if kind == "ones":
        return np.ones(shape)
    if kind == "arange1":
        return np.arange(1.0, math.prod(shape) + 1).reshape(shape)
    if kind in ("nan_center", "impulse_center"):
        out = np.ones(shape) if kind == "nan_center" else np.zeros(shape)
        center = shape[-2] // 2, shape[-1] // 2
        out[..., center[0], center[1]] = np.nan if kind == "nan_center" else 1.0
        return out
    if match := re.fullmatch(r"constant\((.+)\)", kind):
        return np.full(shape, float(match[1]))
    if match := re.fullmatch(r"uniform\((.+),(.+)\)", kind):
        return rng.uniform(float(match[1]), float(match[2]), shape)
    raise ValueError(f"cases.json uses an input that this loader does not know: {kind}")


def _load() -> dict[str, Reported]:
    text = (pathlib.Path(__file__).parent / "cases.json").read_text()
    reported = {}
    for entry in json.loads(text):
        op = dict(entry["op"])
        for key in ("stride", "padding", "output_padding", "dilation"):
            if isinstance(op[key], list):
                op[key] = tuple(op[key])
        assert entry["id"] not in reported, entry["id"]
        reported[entry["id"]] = Reported(
            id=entry["id"],
            case=cases.Case(name=entry["id"], **op),
            transform=entry["transform"],
            expect=entry["expect"],
            why=entry["why"],
            entry=entry,
        )
    return reported


REPORTED = _load()
