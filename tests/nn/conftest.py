"""What the tests of the Flax layers share: problems and their right results."""

import dataclasses
from typing import Any

import numpy as np
import oracle
import pytest

# Arguments of both Flax layers, by name.
PROBLEMS = {
    "plain": {"kernel_size": 3},
    "stride": {"kernel_size": 4, "strides": 2, "padding": 1},
    "rectangular": {
        "kernel_size": (3, 2),
        "strides": (2, 3),
        "padding": (1, 0),
        "output_padding": (1, 2),
    },
    "groups": {"kernel_size": 3, "strides": 2, "groups": 2, "use_bias": False},
    "depthwise": {"kernel_size": (2, 3), "padding": (0, 1), "groups": 4},
    "dilation": {
        "kernel_size": (2, 3),
        "strides": (1, 2),
        "dilation": (3, 2),
        "padding": (2, 1),
        "output_padding": (2, 1),
    },
}
IN, OUT = 4, 8


def to_layout(array, layout):
    """(*batch, C, H, W) in the axes of a layout."""
    return np.moveaxis(array, -3, -1) if layout == "NHWC" else array


def from_layout(array, layout):
    """The inverse of `to_layout`."""
    return np.moveaxis(np.asarray(array), -1, -3) if layout == "NHWC" else array


@dataclasses.dataclass(frozen=True)
class Problem:
    """A layer's arguments, arrays in NCHW, and the right results.

    Attributes:
      arguments: What to build the layer with.
      x: (2, IN, 5, 4).
      kernel: (IN, OUT // groups, kh, kw).
      bias: (OUT,) or None.
      dy: The cotangent of the result.
      expected: "y", "dx", "dw" and "db" by the oracle.
    """

    arguments: dict
    x: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray | None
    dy: np.ndarray
    expected: dict[str, oracle.Expected]

    @property
    def torch_arguments(self):
        names = {"strides": "stride", "use_bias": "bias"}
        return {names.get(name, name): a for name, a in self.arguments.items()}

    def check(self, layout, **results):
        """Compare results, where "y" and "dx" are in the layout."""
        for name, result in results.items():
            if name in ("y", "dx"):
                result = from_layout(result, layout)
            oracle.assert_close(
                result, self.expected[name], self.x.dtype, what=f"{name} {layout}"
            )


@pytest.fixture(params=PROBLEMS)
def problem(request, rng):
    arguments = PROBLEMS[request.param]
    groups = arguments.get("groups", 1)
    geometry: dict[str, Any] = {
        "stride": oracle.pair(arguments.get("strides", 1)),
        "crop": oracle.torch_crop(
            arguments.get("padding", 0), arguments.get("output_padding", 0)
        ),
        "dilation": oracle.pair(arguments.get("dilation", 1)),
        "groups": groups,
    }

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    x = draw(2, IN, 5, 4)
    kernel = draw(IN, OUT // groups, *oracle.pair(arguments["kernel_size"]))
    bias = draw(OUT) if arguments.get("use_bias", True) else None
    dy = draw(*oracle.forward(x, kernel, bias, **geometry).shape)
    expected = oracle.expected_passes(x, kernel, bias, dy, **geometry)
    return Problem(arguments, x, kernel, bias, dy, expected)


@pytest.fixture(params=["NHWC", "NCHW"])
def layout(request):
    return request.param


@pytest.fixture
def torch_results(problem):
    """What torch's own layer gives, for "y", "dx", "dw" and "db" in NCHW."""
    torch = pytest.importorskip("torch")
    layer = torch.nn.ConvTranspose2d(IN, OUT, **problem.torch_arguments)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(problem.kernel))
        if problem.bias is not None:
            layer.bias.copy_(torch.tensor(problem.bias))
    x = torch.tensor(problem.x, requires_grad=True)
    y = layer(x)
    y.backward(torch.tensor(problem.dy))
    results = {"y": y, "dx": x.grad, "dw": layer.weight.grad}
    if problem.bias is not None:
        results["db"] = layer.bias.grad
    return results
