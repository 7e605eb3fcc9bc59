"""What the examples draw with."""

import importlib.util
import pathlib

import numpy as np
import pytest

PATH = pathlib.Path(__file__).parents[2] / "examples" / "pictures.py"


@pytest.fixture
def pictures():
    pytest.importorskip("PIL")
    if not PATH.exists():
        pytest.skip("the examples are not beside the tests")
    spec = importlib.util.spec_from_file_location("pictures", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def places(picture, colour):
    """Rows and columns of a colour inside of the frame."""
    inner = np.asarray(picture)[31:209, 31:449]
    return np.nonzero((inner == colour).all(-1))


def test_a_curve_is_where_its_values_are(pictures):
    plot = pictures.curves("loss", {"a": [4.0, 3.0, 2.0]}, bottom=2.0)
    rows, columns = places(plot, pictures.COLOURS[0])
    assert rows[columns.argmin()] < 5
    assert rows[columns.argmax()] > 173
    middle = rows[abs(columns - 209) < 2]
    assert abs(middle - 89).max() < 4


def test_equal_dots_do_not_hide_each_other(pictures):
    values = [1.0, 0.5, 0.25]
    plot = pictures.curves("loss", {"a": values}, dots={"b": values, "c": values})
    counts = [len(places(plot, colour)[0]) for colour in pictures.COLOURS]
    assert min(counts) > 10


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [3.0]])
def test_flat_curves(values, pictures):
    plot = pictures.curves("loss", {"a": values})
    assert np.asarray(plot).shape == (240, 480, 3)


def test_bars(pictures):
    chart = np.asarray(pictures.bars("time", {"slow": 4.0, "fast": 1.0}, "ms"))
    widths = [(chart == colour).all(-1).any(0).sum() for colour in pictures.COLOURS[:2]]
    assert widths[0] == pytest.approx(4 * widths[1], abs=4)


def test_tiles_and_a_picture_of_several(pictures, tmp_path, capsys):
    from PIL import Image

    images = np.arange(6)[:, None, None] / 5 * np.ones((6, 2, 4))
    grid = pictures.tiles(images, 3)
    assert grid.size == (3 * 6, 2 * 4)
    pixels = np.asarray(grid)
    assert [pixels[1, 1], pixels[1, 7], pixels[5, 13]] == [0, 51, 255]
    path = tmp_path / "new" / "picture.png"
    pictures.save([pictures.curves("loss", {"a": [1, 2]}), grid], path, "words")
    with Image.open(path) as picture:
        assert picture.size == (480, 240 + 8 * 480 // 18)
    assert capsys.readouterr().out == f"{path}: words\n"
