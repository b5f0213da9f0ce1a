# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""A plan as one HTML page: the pools as bars, the same figures as a table, what would help and what is doubtful.

The page needs nothing beside itself and loads nothing (its content policy forbids it). It follows the reader's light or dark
setting. Every text in it is escaped.
"""

from __future__ import annotations

import html
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._verdicts import words
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._bars import Bar, PlottingMissing, draw
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._pool_bars import KINDS, TERM_KINDS, plan_bar, pool_bar
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._report import holders
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._text import printable, size

_STYLE: t.Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; background: Canvas; color: CanvasText; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; } svg text { font-family: inherit; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
th:first-child, td:first-child { text-align: left; font-weight: normal; }
tr.sum > * { font-weight: bold; }
small, .note { opacity: .8; }
"""
_POLICY: t.Final = "default-src 'none'; style-src 'unsafe-inline'"


class Page(t.NamedTuple):
    """The page, and a sentence where it has no drawing."""

    html: str
    message: str


def page(plan: Mapping[str, t.Any]) -> Page:
    """Return the page of *plan*, the dictionary that plan.yml writes."""
    nodes: dict[str, Mapping[str, t.Any]] = {str(name): node for name, node in (plan.get("nodes") or {}).items()}
    verdict = words(plan.get("verdict"))
    title = f"{plan.get('model')}: {verdict}"
    message, drawing = "", ""
    bars = _bars(nodes)
    try:
        drawing = draw(bars, KINDS, title, _description(nodes), prefix="plan")
    except (PlottingMissing, ValueError) as exc:
        message = f"The pools are not drawn: {exc}."
    parts = [f"<h1>{_text(title)}</h1>", f"<p>{_text(_setting(plan))}</p>"]
    parts.append(f"<figure>{drawing}</figure>" if drawing else f'<p class="note">{_text(message)}</p>')
    parts.append(f'<h2>Figures</h2><div class="wide">{_table(nodes, str(plan.get("worst_node")))}</div>')
    worst = nodes.get(str(plan.get("worst_node"))) or {}
    budget = worst.get("budget") or {}
    parts += _list("What would help, the cheapest first", [entry.get("message") for entry in budget.get("remedies") or []], "ol")
    parts += _list("What is wrong or doubtful", [entry.get("message") for entry in budget.get("problems") or []], "ul")
    parts += _list("What was assumed", budget.get("assumptions") or [], "ul")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head += f"<title>{_text(title)}</title><style>{_STYLE}</style>"
    body = "\n".join(parts)
    return Page(f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n', message)


def _bars(nodes: Mapping[str, Mapping[str, t.Any]]) -> list[Bar]:
    bars = []
    for name, node in nodes.items():
        memory, budget = node.get("memory") or {}, node.get("budget") or {}
        stopped = {str(entry.get(key)) for entry in budget.get("stop") or [] for key in ("name", "unit") if entry.get(key)}
        bars.append(pool_bar(name, "now", memory, holders(node), stopped))
        if budget.get("need") is not None and budget.get("have") is not None:
            bars.append(plan_bar(name, "with the model", memory, budget))
    return bars


def _description(nodes: Mapping[str, Mapping[str, t.Any]]) -> str:
    sentences = []
    for name, node in nodes.items():
        budget, memory = node.get("budget") or {}, node.get("memory") or {}
        sentences.append(
            f"{printable(name, 80)}: of {size(memory.get('total'))}, {size(memory.get('cuda_free'))} are free now and {size(budget.get('have'))} "
            f"after eviction of the page cache; the model needs {size(budget.get('need'))}."
        )
    return " ".join(sentences)


def _setting(plan: Mapping[str, t.Any]) -> str:
    ranks = f"{plan.get('tensor_parallel')} tensor-parallel x {plan.get('pipeline_parallel')} pipeline ranks"
    return f"{plan.get('engine')}, {ranks}; all figures are for one rank on its node. {plan.get('worst_node')} decides."


def _table(nodes: Mapping[str, Mapping[str, t.Any]], worst: str) -> str:
    rows: list[tuple[str, str, list[str]]] = []

    def add(title: str, of: t.Callable[[Mapping[str, t.Any], Mapping[str, t.Any]], str], style: str = "") -> None:
        rows.append((title, style, [of(node.get("budget") or {}, node.get("memory") or {}) for node in nodes.values()]))

    add("verdict", lambda budget, _memory: words(budget.get("verdict")), "sum")
    for name, kind in TERM_KINDS.items():
        rows.append((kind.title, "", [size(((node.get("budget") or {}).get("terms") or {}).get(name)) for node in nodes.values()]))
    add("needs", lambda budget, _memory: size(budget.get("need")), "sum")
    add("a new CUDA process can get", lambda budget, _memory: size(budget.get("have")), "sum")
    add("of it free now", lambda _budget, memory: size(memory.get("cuda_free")))
    add("too little by", lambda budget, _memory: size(budget.get("shortfall")))
    add("tokens that the cache will hold", lambda budget, _memory: "unknown" if budget.get("kv_tokens") is None else f"{int(budget['kv_tokens']):,}")
    add("to be stopped", lambda budget, _memory: ", ".join(printable(entry.get("name")) for entry in budget.get("stop") or []) or "nothing")
    heads = "".join(f'<th scope="col">{_text(name)}{" (decides)" if name == worst and len(nodes) > 1 else ""}</th>' for name in nodes)
    lines = [f'<table><thead><tr><th scope="col">a rank on</th>{heads}</tr></thead><tbody>']
    for title, style, cells in rows:
        marked = f' class="{style}"' if style else ""
        lines.append(f'<tr{marked}><th scope="row">{_text(title)}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in cells)}</tr>')
    return "".join([*lines, "</tbody></table>"])


def _list(title: str, entries: Sequence[t.Any], tag: str) -> list[str]:
    if not entries:
        return []
    items = "".join(f"<li>{_text(entry, 1000)}</li>" for entry in entries)
    return [f"<h2>{_text(title)}</h2>", f"<{tag}>{items}</{tag}>"]


def _text(value: object, limit: int = 300) -> str:
    return html.escape(printable(value, limit))
