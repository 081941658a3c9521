"""A plan as text for somebody who has never seen one; made of the JSON that ``/v1/plan`` serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frizzen.sizes_text import show_bytes

__all__ = ["report"]

ABOUT = {
    "weights": "parameters, as the kernels keep them",
    "kv_cache": "keys and values of running requests and of reusable prefixes",
    "drafts": "distributions that drafts were drawn from",
    "graphs": "CUDA graphs of decode steps, captured while it serves",
    "workspaces": "activations of the largest step, inputs and results of steps",
    "reserve": "left free for sampling, libraries and what they round up",
}


def report(title: str, plan: Mapping[str, Any]) -> str:
    """Decisions, kernels with what was passed over, memory, and what fits."""
    parts = [title, _decisions(plan), _kernels(plan), _memory(plan["memory"]), _capacity(plan)]
    return "\n\n".join(parts)


def _table(rows: list[tuple[str, ...]], below: list[list[str]] | None = None) -> list[str]:
    """Left-aligned columns; ``below`` are lines under each row."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for index, row in enumerate(rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(("  " + "  ".join(cells)).rstrip())
        lines += below[index] if below else []
    return lines


def _decisions(plan: Mapping[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        (entry["name"], entry["value"], entry["reason"]) for entry in plan["decisions"]
    ]
    return "\n".join(["What was decided, and why", *_table(rows)])


def _kernels(plan: Mapping[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("operation", "where", "layers", "kernel")]
    below: list[list[str]] = [[]]
    for kernel in plan["kernels"]:
        ranges = (f"{first}-{last}" if last > first else f"{first}" for first, last in kernel["layers"])
        rows.append((kernel["op"], kernel["site"], ",".join(ranges) or "-", kernel["kernel"]))
        below.append(_passed_over(kernel["rejected"]))
    return "\n".join(
        [
            "Which kernel computes what (below it the faster ones that cannot, and what would change that)",
            *_table(rows, below),
        ]
    )


def _passed_over(losers: list[Mapping[str, Any]]) -> list[str]:
    lines = []
    # What is made for another kind of device says nothing about this one; the JSON lists it all the same.
    for loser in losers:
        if loser["faster"] and loser["code"] != "device":
            lines.append(f"      not {loser['kernel']}: {loser['code']}: {loser['message']}")
            if loser["fix"]:
                lines.append(f"          to have it: {loser['fix']}")
    slower = [loser["kernel"] for loser in losers if loser["code"] == "outranked"]
    if slower:
        lines.append(f"      slower ones: {', '.join(slower)}")
    return lines


def _memory(memory: Mapping[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("owner", "predicted", "measured", "")]
    for owner in memory["owners"]:
        measured = "-"
        if owner["measured"] is not None:
            off = f"({owner['measured'] / max(owner['predicted'], 1) - 1:+.1%})"
            measured = f"{show_bytes(owner['measured'])} {'at most' if owner['bound'] else off}"
        about = ABOUT.get(owner["owner"], "")
        rows.append((owner["owner"], show_bytes(owner["predicted"]), measured, about))
        rows += [(f"  {name}", show_bytes(size), "", "") for name, size in owner["parts"].items()]
    total = sum(owner["predicted"] for owner in memory["owners"])
    rows.append(("together", show_bytes(total), "", f"of {show_bytes(memory['free_before'])} that were free"))
    if all(owner["measured"] is None for owner in memory["owners"]):
        # A column of dashes would look like something that failed.
        rows = [(name, predicted, about) for name, predicted, _, about in rows]
    return "\n".join([f"Memory of {memory['device']}", *_table(rows)])


def _capacity(plan: Mapping[str, Any]) -> str:
    decided = {entry["name"]: entry["value"] for entry in plan["decisions"]}
    length, memory = int(decided["max_model_len"]), plan["memory"]
    tokens = memory["kv_cache"] // max(memory["kv_per_token"], 1)
    return (
        f"It fits. A request may have up to {length:,} tokens, prompt and answer together; "
        f"the KV cache holds {tokens:,} tokens, {tokens / length:.1f} such requests at a time."
    )
