# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""A deployment as one page for a browser: nothing is loaded from elsewhere, it is readable on light and dark, and all text from outside is escaped."""

from __future__ import annotations

import datetime
import html
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import GIB, MIB
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._plot import Flag, Line, bars, duration, plot
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._text import size
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._timeline import Mark, Sample, marks, samples, steps

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1c1e; --soft: #6b6b70; --rule: #d9d9de; --card: #f5f5f7; --bad: #b3261e; --good: #1b6e3c;
  --available: #1f6feb; --free: #8250df; --cache: #bf8700; --bar: #1f6feb; }
@media (prefers-color-scheme: dark) { :root { --paper: #16161a; --ink: #ececf1; --soft: #9a9aa3; --rule: #34343b; --card: #1f1f25; --bad: #ff8a80;
  --good: #7ddc9b; --available: #6cb0ff; --free: #c297ff; --cache: #e3b341; --bar: #6cb0ff; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } .soft { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
table { border-collapse: collapse; width: 100%; } th, td { border-bottom: 1px solid var(--rule); padding: .25rem .5rem; text-align: right; }
th:first-child, td:first-child { text-align: left; } td.text { text-align: left; overflow-wrap: anywhere; }
.card { background: var(--card); border-radius: 6px; padding: .75rem 1rem; overflow-wrap: anywhere; } pre { overflow-x: auto; white-space: pre-wrap; }
svg { display: block; height: auto; width: 100%; } svg text { fill: var(--ink); font-size: 12px; } svg .tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--rule); stroke-width: 1; } .bar { fill: var(--bar); opacity: .8; } polyline { fill: none; stroke-width: 2; }
.available { stroke: var(--available); } .free { stroke: var(--free); } .cache { stroke: var(--cache); }
.predicted { stroke: var(--soft); stroke-dasharray: 6 4; stroke-width: 1.5; }
g line { stroke: var(--soft); stroke-dasharray: 2 3; } g circle { fill: var(--card); stroke: var(--soft); } g.stop circle, g.end circle { stroke: var(--bad); }
g.start circle, g.ready circle { stroke: var(--good); } .key { display: inline-block; height: .2rem; margin: 0 .35rem .25rem 1rem; width: 1.5rem; }
.key.available { background: var(--available); } .key.free { background: var(--free); } .key.cache { background: var(--cache); }
.key.predicted { background: var(--soft); }
"""

#: Marks that get a number in a plot; stages are many, and stand in the list beside it only.
_FLAGS = ("stop", "start", "ready", "end")


def _e(value: t.Any) -> str:
    return html.escape(str(value))


def _at(time: float | None) -> str:
    return "" if time is None else datetime.datetime.fromtimestamp(time, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[int] = ()) -> str:
    """A table of escaped cells; columns of ``text`` stand to the left."""
    cells = "".join(f"<th>{_e(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f'<td class="text">{_e(cell)}</td>' if column in text else f"<td>{_e(cell)}</td>" for column, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def measured(node: Mapping[str, t.Any]) -> tuple[int, int] | None:
    """(what was predicted that the rank takes, what it took), in bytes; None where either is not known."""
    moments = node.get("moments") or {}
    launch, after = ((moments.get(name) or {}).get("memory") or {} for name in ("at_launch", "after"))
    taken = (node.get("budget") or {}).get("will_take")
    if taken is None or launch.get("available") is None or after.get("available") is None:
        return None
    took = int(launch["available"]) - int(after["available"])
    return (int(taken), took) if took > 0 else None


def _summary(nodes: Mapping[str, Mapping[str, t.Any]], failed: bool) -> str:
    rows = []
    for name, node in nodes.items():
        budget = node.get("budget") or {}
        pair = None if failed else measured(node)
        stopped = [str(action.get("target")) for action in node.get("actions") or [] if action.get("layer") != "cache"]
        moments = node.get("moments") or {}
        now = (moments.get("after") or moments.get("before") or {}).get("memory") or {}
        error = f"{100.0 * (pair[0] - pair[1]) / pair[1]:+.1f} %" if pair else "-"
        cells = [name, str(budget.get("verdict") or "-"), size(budget.get("need")), size(budget.get("have"))]
        cells += [size(pair[0]) if pair else "-", size(pair[1]) if pair else "-", error]
        rows.append([*cells, size(now.get("available")), ", ".join(stopped) or "-"])
    head = ["node", "verdict", "needs", "could get", "predicted to take", "took", "error", "available now", "stopped"]
    return _table(head, rows, text=(1, 8))


def _terms(nodes: Mapping[str, Mapping[str, t.Any]]) -> str:
    names: list[str] = []
    for node in nodes.values():
        names += [name for name in (node.get("budget") or {}).get("terms") or {} if name not in names]
    if not names:
        return ""
    rows = [[name.replace("_", " "), *(size(((node.get("budget") or {}).get("terms") or {}).get(name)) for node in nodes.values())] for name in names]
    return "<h2>What the prediction is made of</h2>" + _table(["term", *nodes], rows)


def _points(found: Sequence[Sample], field: str) -> list[tuple[float, float | None]]:
    values = [(sample.time, getattr(sample, field)) for sample in found]
    return [(time, value / _unit(found)[1]) for time, value in values if value is not None]


def _unit(found: Sequence[Sample]) -> tuple[str, int]:
    """GiB, or MiB for a pool that is small."""
    return ("GiB", GIB) if max((sample.available for sample in found), default=0) >= 2 * GIB else ("MiB", MIB)


def _memory(name: str, node: Mapping[str, t.Any], found: Sequence[Sample], noted: Sequence[Mark], span: tuple[float, float]) -> str:
    unit, scale = _unit(found)
    moments = node.get("moments") or {}
    totals = [(moment.get("memory") or {}).get("total") for moment in moments.values()]
    highest = max([float(total) for total in totals if total] or [float(max((sample.available for sample in found), default=1))])
    lines = [
        Line("cache", "page cache", _points(found, "cache")),
        Line("free", "free", _points(found, "free")),
        Line("available", "available", _points(found, "available")),
    ]
    launch = (moments.get("at_launch") or {}).get("memory") or {}
    taken = (node.get("budget") or {}).get("will_take")
    begin = (node.get("times") or {}).get("at_launch")
    if taken is not None and launch.get("available") is not None and begin is not None:
        rest = max(0.0, (int(launch["available"]) - int(taken)) / scale)
        predicted: list[tuple[float, float | None]] = [(float(begin), rest), (span[1], rest)]
        lines.append(Line("predicted", f"available, as predicted: {rest:.1f} {unit}", predicted))
    shown = [mark for mark in noted if mark.kind in _FLAGS]
    flags = [Flag(mark.time, mark.kind, str(number), mark.text) for number, mark in enumerate(shown, 1)]
    numbers = {mark: str(number) for number, mark in enumerate(shown, 1)}
    drawing = plot(f"Memory of {name}", lines, flags, unit, highest / scale, span)
    rows = [[numbers.get(mark, ""), f"+{duration(max(0.0, mark.time - span[0]))}", mark.text[:300]] for mark in noted]
    legend = "".join(
        f'<span class="key {style}"></span>{words}'
        for style, words in (("available", "available"), ("free", "free"), ("cache", "page cache"), ("predicted", "available, as predicted"))
    )
    table = _table(["", "when", "what"], rows, text=(0, 1, 2)) if rows else ""
    drawn = f"{drawing}<p class='soft'>{legend}</p>" if drawing else "<p class='soft'>Its memory could not be read.</p>"
    return f"<h2>{_e(name)}</h2>{drawn}{table}"


def _cause(diagnosis: Mapping[str, t.Any]) -> str:
    if not diagnosis.get("class"):
        return ""
    where = f"{diagnosis['node']}" + (f", rank {diagnosis['rank']}" if diagnosis.get("rank") is not None else "")
    rows = [["class", f"{diagnosis['class']}: {diagnosis.get('meaning')}"], ["node", where], ["when", diagnosis.get("at") or "unknown"]]
    rows += [["line", diagnosis.get("line")], ["remedy", diagnosis.get("remedy")]]
    listed = "".join(f"<tr><td>{_e(key)}</td><td class='text'>{_e(value)}</td></tr>" for key, value in rows)
    told = [
        [str(entry.get("at") or ""), str(entry.get("node") or ""), str(entry.get("class") or ""), str(entry.get("line"))[:400]]
        for entry in diagnosis.get("timeline") or []
    ]
    said = "<h2>What was said, by one clock</h2>" + _table(["when", "node", "class", "line"], told, text=(0, 1, 2, 3)) if told else ""
    return f"<h2>The cause</h2><table><tbody>{listed}</tbody></table>{said}"


def render(
    nodes: Mapping[str, Mapping[str, t.Any]], common: Mapping[str, t.Any], lines: Sequence[str], diagnosis: Mapping[str, t.Any] | None, end: float | None
) -> str:
    """The page. ``nodes`` and ``common`` are deploy_report's, ``lines`` its text; ``end`` is when the run ended (seconds since 1970)."""
    failed = bool(common.get("failed"))
    result = common.get("result") or {}
    engine = str(common.get("engine") or "vllm_ray")
    told = {name: (samples(node), marks(node, engine)) for name, node in nodes.items()}
    noted = common.get("steps") or []
    times = [sample.time for found, _marks in told.values() for sample in found] + [float(entry["at"]) for entry in noted if entry.get("at") is not None]
    finish = max([*times, *([end] if end is not None else [])], default=0.0)
    begin = min(times, default=finish)
    done = steps(noted, finish)
    title = f"{common.get('model')} with {common.get('engine')} on {', '.join(nodes)}"
    state = "<span class='bad'>failed</span>" if failed else "<span class='good'>deployed</span>"
    parts = [
        f"<h1>{_e(title)}: {state}</h1>",
        f"<p class='soft'>{_e(_at(begin) if times else '')}{_e(', ' + duration(finish - begin) if times else '')}</p>",
    ]
    if failed and lines:
        parts.append(f"<p class='card bad'>{_e(lines[0])}</p>")
    if result.get("completion"):
        completion = result["completion"]
        said = f"{completion.get('prompt')} {str(completion.get('text')).strip()}"
        parts.append(f"<p class='card'>{_e(result.get('endpoint'))}<br><span class='soft'>{_e(said)}</span></p>")
    parts += [_summary(nodes, failed), _cause(diagnosis or {})]
    if done:
        parts.append("<h2>Steps</h2>" + bars("Steps of the run", [(step.name, step.begin, step.end) for step in done]))
    parts += [_memory(name, nodes[name], found, noted_marks, (begin, finish)) for name, (found, noted_marks) in told.items()]
    parts += [_terms(nodes), f"<h2>As text</h2><pre class='card'>{_e(chr(10).join(lines))}</pre>"]
    page = "".join(part for part in parts if part)
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head><body>{page}</body></html>\n"
    )
