"""Result files: written after every group of rows, so that a run cut short counts."""

from __future__ import annotations

import json
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable
from typing import Any

from benchmarks import stats

RESULTS = pathlib.Path(__file__).parent / "results"


def default_path(facts: dict[str, Any]) -> pathlib.Path:
    """``results/<date>-<card>-<commit>.json``."""
    card = re.sub(r"[^A-Za-z0-9]+", "-", facts["card"].split(",")[0]).strip("-").lower()
    return RESULTS / f"{facts['date'][:10]}-{card}-{facts['commit']}.json"


def load(path: pathlib.Path) -> dict[str, Any]:
    """Reads a result file.

    Raises:
        ValueError: if it is not one.
    """
    data = json.loads(path.read_text())
    if not isinstance(data, dict) or "rows" not in data or "machine" not in data:
        raise ValueError(f"{path} is not a result file of these benchmarks")
    return data


class Store:
    """One result file, with the rows of this run and of earlier ones.

    Args:
        path: the file; rows that it already holds are kept, and not measured again.
        facts: this run's machine.
        retry: measure again what failed or came out wrong.

    Raises:
        ValueError: if the file is from another card.
    """

    def __init__(
        self, path: pathlib.Path, facts: dict[str, Any], retry: bool = False
    ) -> None:
        self.path = path
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        self._data: dict[str, Any] = {"machine": facts, "runs": [facts]}
        if path.exists():
            old = load(path)
            if old["machine"]["card"] != facts["card"]:
                raise ValueError(
                    f"{path} was measured on {old['machine']['card']}, this is "
                    f"{facts['card']}: times of two cards don't mix.\n"
                    "Resolution: choose another --json."
                )
            self._data |= {k: v for k, v in old.items() if k not in ("rows", "machine")}
            self._data["runs"] = [*old.get("runs", []), facts]
            self._rows = {stats.key(r): r for r in old["rows"]}
        self._commit = facts["commit"]
        self._retry = retry

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, older ones first."""
        return list(self._rows.values())

    def done(self, key: tuple[str, ...]) -> bool:
        """Whether a row need not be measured: ours only if from the same commit."""
        row = self._rows.get(key)
        if row is None or (self._retry and row["status"] in ("error", "wrong")):
            return False
        ours = stats.is_ours(row["peer"]) or row["peer"] == "xla"
        return not ours or row.get("commit") == self._commit

    def set(self, name: str, value: Any) -> None:
        """Sets a part of the file that is not a row."""
        self._data[name] = value

    def get(self, name: str) -> Any:
        """A part of the file that is not a row, or None."""
        return self._data.get(name)

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Adds rows, or replaces those of the same key, and writes the file."""
        for row in rows:
            key = stats.key(row)
            self._rows.pop(key, None)
            self._rows[key] = row
        self.write()

    def write(self) -> None:
        """Replaces the file in one step; one line a row."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = json.dumps(self._data, indent=1)[:-2]
        body = ",\n".join("  " + json.dumps(r) for r in self._rows.values())
        handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
        with os.fdopen(handle, "w") as file:
            file.write(f'{head},\n "rows": [\n{body}\n ]\n}}\n')
        os.chmod(name, 0o644)
        os.replace(name, self.path)
