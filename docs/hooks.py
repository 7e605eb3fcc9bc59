"""What MkDocs can't do by itself: pages from outside of `docs/`, and links to them.

Links are written as they are valid in the repository. A page of the repository that
is not in `docs/` is part of the site as it is, so that nothing has to be copied; a link
to a file that the site does not have becomes its name.

MkDocs calls the functions; Griffe, which reads the docstrings, the class.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Where a file of the repository is in the site. README.md is not the home page.
PAGES = {
    "README.md": "OVERVIEW.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "benchmarks/REPORT.md": "benchmarks/REPORT.md",
    "benchmarks/NOTES.md": "benchmarks/NOTES.md",
}
DATA = ("benchmarks/plots/*.png", "benchmarks/results/*.json", "examples/*.py")

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def _sources() -> dict[str, str]:
    """Path in the site of every file of the repository that it has beside `docs/`."""
    data = (p.relative_to(ROOT).as_posix() for g in DATA for p in ROOT.glob(g))
    return PAGES | {path: path for path in data}


def on_files(files: Files, config: Any) -> Files:
    """Adds the files from outside of `docs/`."""
    for path, uri in _sources().items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files of the repository into links between pages."""
    uri = page.file.src_uri
    sources = _sources()
    homes = {site: path for path, site in sources.items()}
    folder = posixpath.dirname(homes.get(uri, f"docs/{uri}"))

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        site = sources.get(path)
        if site is None and path.startswith("docs/"):
            site = path.removeprefix("docs/")
        if site is None:
            # Named, if in the repository only; what is nowhere is MkDocs' to report.
            return text if (ROOT / path).exists() else match[0]
        relative = posixpath.relpath(site, posixpath.dirname(uri) or ".")
        return f"{image}[{text}]({relative}{anchor or ''})"

    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(link, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(link, markdown[end:])])


class Docstrings(griffe.Extension):
    """Makes Markdown of our docstrings.

    A section is shown as doctests under the name "Examples" only, and the asterisk of a
    shape such as (*batch, H, W) would begin emphasis.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites one docstring."""
        if obj.docstring:
            text = obj.docstring.value
            text = re.sub(r"^( *Example):$", r"\1s:", text, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"(?<!`)\(\*(?=\w+,)", r"(\\*", text)
