"""Each example, small: it succeeds, the loss goes down, and there is a picture."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.demo, pytest.mark.slow]

# Arguments, the line that has the first and the last loss, and the smallest height of
# the picture: of curves alone it is 240.
CASES = {
    "one_import": ("--size 32 --width 16", "loss", 372),
    "vae": ("--epochs 10", "bound", 360),
    "dcgan": ("--epochs 3 --width 16", "distance to held-out digits", 600),
    "unet": ("--steps 40 --size 16 --width 8", "loss", 600),
    "meanflow": ("--epochs 3 --width 8", "square error", 360),
    "data_parallel": ("--devices 2 --steps 3 --size 16", "loss", 240),
}


def run(name, arguments, path):
    """What an example prints; it runs as by hand, from a directory of its own."""
    if not EXAMPLES.exists():
        pytest.skip("the examples are not beside the tests")
    left_out = ("XLA_FLAGS", "PYTHONSAFEPATH")  # of these tests, and not of a user
    env = {k: v for k, v in os.environ.items() if k not in left_out}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments.split()]
    done = subprocess.run(
        [*command, "--out", str(path)],
        env=env,
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pixels(path):
    from PIL import Image

    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB"))


@pytest.mark.parametrize("name", CASES)
def test_example(name, tmp_path):
    arguments, loss, height = CASES[name]
    path = tmp_path / "made" / "picture.png"
    path.parent.mkdir()
    out = run(name, arguments, path)
    (line,) = re.findall(
        rf"^{re.escape(loss)}: (\S+) before, (\S+) after$", out, re.MULTILINE
    )
    before, after = map(float, line)
    assert 0 < after < before
    assert f"{path}: " in out
    picture = pixels(path)
    assert picture.shape[0] >= height
    # A curve in the first colour, and more than one column of it.
    curve = (picture[:240] == (70, 140, 220)).all(-1)[31:209]
    assert curve.any(0).sum() > 100


@pytest.mark.torch
def test_generator_from_torch(tmp_path):
    path = tmp_path / "picture.png"
    run("generator_from_torch", "--steps 2 --width 8", path)
    picture = pixels(path).astype(int)
    theirs, ours = np.split(picture, 2)
    assert np.ptp(theirs) > 0
    assert abs(theirs - ours).max() <= 1


def test_every_example_is_tested_and_listed():
    """Here and in the README; fsrcnn has a command of its own."""
    if not EXAMPLES.exists():
        pytest.skip("the examples are not beside the tests")
    programs = {p.stem for p in EXAMPLES.glob("*.py") if "__main__" in p.read_text()}
    assert programs == {*CASES, "generator_from_torch", "fsrcnn"}
    text = (EXAMPLES.parent / "README.md").read_text()
    table = text.partition("\n## Examples\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"\(examples/(\w+)\.py\)", table)) == programs
