# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""A plan for a person: what is decided, a node a line, what would help, what is doubtful. All of it in ten seconds."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_config import SLIDING
from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import badness, words
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._text import printable, size, table

_TERMS: t.Final = (
    ("weights", ("weights",)),
    ("KV cache and state", ("kv_cache", "recurrent_state")),
    ("activations and graphs", ("activations", "graphs")),
    ("context and communication", ("cuda_context", "communication")),
    ("host processes", ("host_process",)),
    ("left for the system", ("reserve",)),
)


def rows(nodes: Mapping[str, Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    """What nodes are compared by: name, verdict, need, have and badness, of which the most decides."""
    found = []
    for name, node in nodes.items():
        budget = node.get("budget") or {}
        found.append({"name": str(name), "badness": badness(budget), **{key: budget.get(key) for key in ("verdict", "need", "have")}})
    return found


def lines(plan: Mapping[str, t.Any]) -> list[str]:
    """The plan as lines of text."""
    nodes: dict[str, Mapping[str, t.Any]] = {str(name): node for name, node in (plan.get("nodes") or {}).items()}
    worst = str(plan.get("worst_node"))
    budget = (nodes.get(worst) or {}).get("budget") or {}
    ranks = int(plan.get("tensor_parallel") or 1) * int(plan.get("pipeline_parallel") or 1)
    model = printable(plan.get("model"), 80)
    decides = f" ({printable(worst, 60)} decides)" if len(nodes) > 1 else ""
    found = [f"{model}, {ranks} {'rank' if ranks == 1 else 'ranks'}, {plan.get('engine')}: {words(plan.get('verdict'))}{decides}", ""]
    found += _node_table(nodes, worst)
    found += ["", *_need(budget), *_cache(budget), *_engine(budget)]
    found += _numbered("What would help, the cheapest first:", budget.get("remedies") or [])
    found += _marked("Wrong or doubtful:", budget.get("problems") or [])
    return found


def _node_table(nodes: Mapping[str, Mapping[str, t.Any]], worst: str) -> list[str]:
    cells = [["node", "needs", "can get", "spare", "free now", "verdict", "to be stopped"]]
    for name, node in nodes.items():
        budget, memory = node.get("budget") or {}, node.get("memory") or {}
        need, have = budget.get("need"), budget.get("have")
        freed = sum(int(entry.get("memory") or 0) for entry in budget.get("stop") or [])
        cells.append(
            [
                printable(name, 60) + (" *" if name == worst and len(nodes) > 1 else ""),
                size(need),
                size(have),
                "unknown" if need is None or have is None else size(int(have) + freed - int(need)),
                size(memory.get("cuda_free")),
                words(budget.get("verdict")),
                ", ".join(printable(entry.get("name"), 60) for entry in budget.get("stop") or []) or "-",
            ]
        )
    return table(cells, left=(0, 5, 6))


def _need(budget: Mapping[str, t.Any]) -> list[str]:
    terms, spread = budget.get("terms") or {}, budget.get("uncertainty") or {}
    if budget.get("need") is None:
        return []
    parts = []
    for title, names in _TERMS:
        value = sum(int(terms.get(name) or 0) for name in names)
        if value:
            parts.append(f"{title} {size(value)}")
    low, high = spread.get("need_low"), spread.get("need_high")
    between = f"; {size(low)} to {size(high)} by the spread of what was measured elsewhere" if low != high else ""
    return [f"A rank needs {size(budget['need'])}: {', '.join(parts)}{between}."]


def _cache(budget: Mapping[str, t.Any]) -> list[str]:
    tokens, requests, length = budget.get("kv_tokens"), budget.get("max_concurrency"), budget.get("context_length")
    if tokens is None or requests is None or length is None:
        return []
    # Layers with a sliding window keep only its tokens, so that all tokens together take less than their number times this figure.
    sliding = any(group.get("kind") == SLIDING for group in (budget.get("kv_layout") or {}).get("groups") or [])
    each = f"{'at most ' if sliding else ''}{size(budget.get('kv_bytes_per_token'))} a token"
    return [f"Its cache will hold {int(tokens):,} tokens: {float(requests):.2f} requests of {int(length):,}, {each}."]


def _engine(budget: Mapping[str, t.Any]) -> list[str]:
    check = budget.get("engine_check") or {}
    failing = [entry for entry in check.get("checks") or [] if not entry.get("passes_now")]
    if not failing:
        return []
    after = "" if all(entry.get("passes_after_cache_eviction") for entry in failing) else ", also after the page cache was evicted"
    first = next((entry for entry in failing if not entry.get("passes_after_cache_eviction")), failing[0])
    figures = f"it asks {size(first.get('asked'))} and sees {size(first.get('seen'))}"
    return [f"Started now the engine would refuse{after}: {figures} ({printable(first.get('rule'), 300)})."]


def _numbered(title: str, entries: t.Sequence[Mapping[str, t.Any]]) -> list[str]:
    return ["", title, *(f"  {number}. {printable(entry.get('message'), 600)}" for number, entry in enumerate(entries, start=1))] if entries else []


def _marked(title: str, entries: t.Sequence[Mapping[str, t.Any]]) -> list[str]:
    signs = {"error": "!", "warning": "-"}
    return ["", title, *(f"  {signs.get(str(entry.get('severity')), '-')} {printable(entry.get('message'), 600)}" for entry in entries)] if entries else []
