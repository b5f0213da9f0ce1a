# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Drawings over time as SVG to put into a page: bars of steps, and lines of figures with marks. Colours are the page's classes; all text is escaped."""

from __future__ import annotations

import html
import math
import typing as t
from collections.abc import Sequence

WIDTH, LEFT, RIGHT = 860, 64, 16
PLOT_HEIGHT, TOP, BOTTOM = 220, 14, 26
BAR = 22


class Line(t.NamedTuple):
    """A line of a plot: its style's class, its name, and its points (time, value); a None in them is a gap."""

    style: str
    name: str
    points: Sequence[tuple[float, float | None]]


class Flag(t.NamedTuple):
    """A mark at a time: its style's class, what stands on it (a number), and the whole text for who points at it."""

    time: float
    style: str
    label: str
    text: str


def _x(time: float, begin: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * ((time - begin) / (end - begin) if end > begin else 0.0)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round values from low to high, about so many."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, wanted)
    size = 10 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def duration(seconds: float) -> str:
    """``12 s``, ``3:05 min``, ``1:02:03 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02} h"


def _time_axis(begin: float, end: float, bottom: float, top: float) -> list[str]:
    parts = []
    for seconds in ticks(0.0, end - begin, 6):
        x = _x(begin + seconds, begin, end)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{html.escape(duration(seconds))}</text>')
    return parts


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{html.escape(title)}"><title>{html.escape(title)}</title>' + "".join(parts) + "</svg>"
    )


def bars(title: str, rows: Sequence[tuple[str, float, float]]) -> str:
    """A row for each (name, begin, end), all on one axis of time. An empty text without rows."""
    if not rows:
        return ""
    begin, end = min(row[1] for row in rows), max(row[2] for row in rows)
    bottom = TOP + BAR * len(rows)
    parts = _time_axis(begin, end, bottom, TOP)
    for number, (name, start, stop) in enumerate(rows):
        x, y = _x(start, begin, end), TOP + BAR * number
        width = max(2.0, _x(stop, begin, end) - x)
        text = f"{name}, {duration(stop - start)}"
        # The name stands in its bar's row on the side where there is room.
        beside = x + width + 6 if x + width < WIDTH * 0.6 else x - 6
        anchor = "start" if beside > x else "end"
        parts.append(f'<rect class="bar" x="{x:.1f}" y="{y + 3:.1f}" width="{width:.1f}" height="{BAR - 6}" rx="2"><title>{html.escape(text)}</title></rect>')
        parts.append(f'<text class="label" x="{beside:.1f}" y="{y + BAR / 2 + 4:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>')
    return _svg(bottom + BOTTOM, title, parts)


def plot(title: str, lines: Sequence[Line], flags: Sequence[Flag], unit: str, top: float, span: tuple[float, float] | None = None) -> str:
    """Lines over time from 0 to ``top`` of a unit, with numbered marks. An empty text where no line has a point."""
    times = [time for line in lines for time, _value in line.points]
    if not times:
        return ""
    begin, end = span or (min(times), max(times))
    bottom = TOP + PLOT_HEIGHT

    def y(value: float) -> float:
        return bottom - PLOT_HEIGHT * (min(max(value, 0.0), top) / top if top > 0 else 0.0)

    parts = _time_axis(begin, end, bottom, TOP)
    for value in ticks(0.0, top):
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y(value):.1f}" x2="{WIDTH - RIGHT}" y2="{y(value):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g} {html.escape(unit)}</text>')
    for line in lines:
        pieces: list[list[str]] = [[]]
        for time, point in line.points:
            if point is None:
                pieces.append([])
            else:
                pieces[-1].append(f"{_x(time, begin, end):.1f},{y(point):.1f}")
        for piece in pieces:
            if piece:
                points = " ".join(piece if len(piece) > 1 else piece * 2)
                parts.append(f'<polyline class="{line.style}" points="{points}"><title>{html.escape(line.name)}</title></polyline>')
    for flag in flags:
        x = min(max(_x(flag.time, begin, end), LEFT), WIDTH - RIGHT)
        parts.append(
            f'<g class="{flag.style}"><title>{html.escape(flag.text)}</title><line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>'
            f'<circle cx="{x:.1f}" cy="{TOP}" r="8"/><text x="{x:.1f}" y="{TOP + 4}" text-anchor="middle">{html.escape(flag.label)}</text></g>'
        )
    return _svg(bottom + BOTTOM, title, parts)
