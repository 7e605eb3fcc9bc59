"""What the pages say of the code, against the code."""

import ast
import importlib
import importlib.util
import pathlib
import re

import pytest

import jax_transconv
from jax_transconv import plan
from jax_transconv.spec import parse_precision

ROOT = pathlib.Path(__file__).parents[2]

# Said by JAX, by words of its own.
THEIRS = (
    "can't apply forward-mode differentiation (jvp) to a custom_vjp function",
    "No constant handler for type: ",
    "Abstract tracer value encountered where concrete value is expected",
    "Cannot serialize code with custom calls whose targets have no",
    "No FFI handler registered for",
)


def page(name):
    path = ROOT / "docs" / name
    if not path.exists():
        pytest.skip("the documentation is not beside the tests")
    return path.read_text()


def literals():
    """The parts of every string in the package that are always the same."""
    package = pathlib.Path(jax_transconv.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value.strip()


def test_troubleshooting_quotes_errors():
    """Every error that is explained is one that can be raised."""
    text = page("troubleshooting.md")
    headings = [
        " ".join(h.split())
        for bold in re.findall(r"^\*\*(`.*?`)\*\*", text, re.MULTILINE | re.DOTALL)
        for h in re.findall(r"`(.*?)`", bold)
    ]
    assert len(headings) > 20
    known = {p for p in literals() if len(p) >= 12} | set(THEIRS)
    unknown = [
        heading
        for heading in headings
        if not any(
            piece in heading or any(len(f) >= 12 and f in piece for f in fragments)
            for fragments in [[f.strip() for f in heading.split("...")]]
            for piece in known
        )
    ]
    assert not unknown


def test_how_it_works_has_every_row():
    text = page("how_it_works.md")
    rows = {row.name for row in plan.CANDIDATES if row.backend != "xla"}
    assert rows == set(re.findall(r"`((?:cpu|cuda):\w+)`", text))


def test_files_that_are_named_exist():
    """Paths in code font, in the pages for contributors."""
    if not (ROOT / "cc").exists():
        pytest.skip("the sources are not beside the tests")
    text = page("how_it_works.md") + (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(
        r"`((?:jax_transconv|cc|tests|scripts|docs|benchmarks)/[^`]*)`", text
    )
    assert paths
    for path in paths:
        if "NAME" not in path:
            assert list(ROOT.glob(path)), path


@pytest.mark.parametrize(
    "name", ["", ".nn.linen", ".nn.nnx", ".nn.equinox", ".nn.haiku", ".torch_compat"]
)
def test_the_reference_has_what_is_public(name):
    """`jax_transconv.porting` is there as a whole."""
    if name.startswith(".nn."):
        pytest.importorskip(re.sub("linen|nnx", "flax", name.rpartition(".")[2]))
    module = importlib.import_module(f"jax_transconv{name}")
    page("index.md")
    text = "\n".join(p.read_text() for p in (ROOT / "docs" / "api").glob("*.md"))
    for public in set(module.__all__) - {"__version__"}:
        home = getattr(module, public).__module__
        entry = rf"^::: (jax_transconv{name}|{home})\.{public}$"
        listed = rf"^::: jax_transconv{name}\n +options:\n +members: \[.*\b{public}\b"
        assert re.search(f"{entry}|{listed}", text, re.MULTILINE), public


def test_precision_words():
    """The spellings of the table of precision.md mean what it says."""
    rows = re.findall(
        r"^\| (default|high|highest) \| (.*) \|$", page("precision.md"), re.M
    )
    assert len(rows) == 3
    for name, words in rows:
        for word in re.findall(r"`\"(\w+)\"`", words):
            assert parse_precision(word).name == name.upper(), word


def test_performance_shows_the_plots_of_the_report():
    """Those of the newest results, each of them, and no older ones."""
    report = ROOT / "benchmarks" / "REPORT.md"
    if not report.exists():
        pytest.skip("the benchmarks are not beside the tests")
    shown = re.findall(r"!\[[^\]]*\]\(\.\./benchmarks/(\S+)\)", page("performance.md"))
    drawn = re.findall(r"^!\[[^\]]*\]\((\S+)\)", report.read_text(), re.MULTILINE)
    assert shown == drawn
    assert shown
    kept = {f"plots/{p.name}" for p in (report.parent / "plots").glob("*.png")}
    assert kept == set(drawn)


def test_papers_of_the_examples_are_listed():
    paths = list((ROOT / "examples").glob("*.py"))
    if not paths:
        pytest.skip("the examples are not beside the tests")
    text = page("papers.md")
    for path in paths:
        for number in re.findall(r"arXiv:(\d+\.\d+)", path.read_text()):
            assert f"[arXiv:{number}]" in text, (path.name, number)


def test_figures():
    """The pictures are those that the geometry gives."""
    pytest.importorskip("matplotlib")
    path = ROOT / "docs" / "figures.py"
    if not path.exists():
        pytest.skip("the documentation is not beside the tests")
    spec = importlib.util.spec_from_file_location("figures", path)
    assert spec is not None
    assert spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    assert figures.counts(2, 3, stride=2) == [1, 1, 2, 1, 1]
    for name in figures.FIGURES:
        assert not figures.changed(name, figures.render(name)), name
