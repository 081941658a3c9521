"""Writes the table of drafters into ``docs/speculation.md``, or checks that it is the one in the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "python/frizzen/speculate/compatibility.json"
PAGE = ROOT / "docs/speculation.md"
BEGIN, END = "<!-- begin of the generated table -->\n", "<!-- end of the generated table -->\n"


def table(data: dict[str, Any]) -> str:
    """The table as Markdown: a matrix of drafters and features, and a note for each reservation."""
    drafters = list(data["drafters"])
    lines = [f"| feature | {' | '.join(drafters)} |", f"|---|{'---|' * len(drafters)}"]
    notes: list[str] = []
    for feature in data["features"]:
        cells = []
        for drafter in drafters:
            rule = next(
                (r for r in data["rules"] if r["feature"] == feature and drafter in r["drafters"]), None
            )
            if rule is None:
                cells.append("yes")
                continue
            note = rule["why"] + (f"; possible is {rule['instead']}" if "instead" in rule else "")
            if note not in notes:
                notes.append(note)
            cells.append(f"{'no' if rule['verdict'] == 'refused' else 'yes'} ({notes.index(note) + 1})")
        lines.append(f"| {feature}: {data['features'][feature]} | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {note}." for number, note in enumerate(notes, 1)), ""]
    return "\n".join(lines)


def page(text: str, data: dict[str, Any]) -> str:
    """``text`` with the table between its marks."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(data)}\n{END}{after}"


def main() -> int:
    """Writes the page; with ``check`` says only whether it is up to date, 1 if it is not."""
    text = PAGE.read_text()
    wanted = page(text, json.loads(TABLE.read_text()))
    if text == wanted:
        return 0
    if sys.argv[1:] == ["check"]:
        print(f"{PAGE.relative_to(ROOT)} is stale: python -m tools.speculation_docs")
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
