# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Memory pools as stacked bars: one SVG, to be put into an HTML page as it is.

Drawn with matplotlib, on the controller and only where it is installed. The picture fits a light page and a dark one: text
and lines take the page's own colour, and the fills are pale enough for black figures on both. It needs nothing from outside,
and several of them fit into one page.

Names come from nodes and are untrusted: they are shortened, made printable, and never read as formulas or markup.
"""

from __future__ import annotations

import contextlib
import io
import logging
import typing as t
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import GIB, format_size
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._text import printable

_SVG: t.Final = "http://www.w3.org/2000/svg"
_XLINK: t.Final = "http://www.w3.org/1999/xlink"
#: Longest name that is drawn; the whole one is for a table beside the picture.
_NAME: t.Final = 28
#: A segment narrower than this share of the axis has no figure in it, only a tooltip.
_NARROW: t.Final = 0.045
#: Inches: of the whole, of what stands left of the bars, of a bar; a group's heading is a part of a bar's height.
_WIDTH: t.Final = 10.0
_LEFT: t.Final = 1.7
_BAR: t.Final = 0.42
_HEADING: t.Final = 0.7
_LEGEND_COLUMNS: t.Final = 4
#: Points.
_FONT: t.Final = 9.0
#: Colours of the drawing that the page replaces by its own text colour.
_INK: t.Final = "#010203"


class PlottingMissing(Exception):
    """The plotting library is not installed; the text is a sentence for the user."""


@dataclass(frozen=True)
class Kind:
    """What a part of a bar is: its words in the legend and its colour (pale, for black figures on it)."""

    title: str
    colour: str


#: Kinds that every picture of a pool has; the colours are from Paul Tol's light scheme, made for labelled cells and colour-blind readers.
POOL_KINDS: t.Final[Mapping[str, Kind]] = {
    "held": Kind("held by GPU processes", "#EE8866"),
    "other": Kind("other processes and the system", "#DDDDDD"),
    "page_cache": Kind("page cache, can be evicted", "#EEDD88"),
    "free": Kind("free", "#F4F9F4"),
}


class Segment(t.NamedTuple):
    """A part of a bar."""

    kind: str
    #: Bytes.
    size: int
    #: What exactly, for the tooltip; the kind's title where it is empty.
    name: str = ""


@dataclass(frozen=True)
class Bar:
    """One bar. Bars with the same group stand together under its name."""

    group: str
    label: str
    segments: Sequence[Segment]
    #: Bytes of the pool, marked with a line; 0: no line.
    pool: int = 0


def draw(bars: Sequence[Bar], kinds: Mapping[str, Kind], title: str, description: str, prefix: str = "bars") -> str:
    """Return the SVG of *bars*, from the first one at the top.

    :param kinds: what each segment's kind means; only those that are used come into the legend.
    :param title: a heading for readers of the screen.
    :param description: what the picture shows, in words.
    :param prefix: begins every id of the SVG; another one for each picture of a page.
    :raises PlottingMissing: where matplotlib is not installed.
    :raises ValueError: where there is nothing to draw.
    """
    shown = [entry for entry in bars if any(segment.size > 0 for segment in entry.segments)]
    if not shown:
        raise ValueError("there is nothing to draw")
    with _plotting() as (figure_class, canvas_class):
        figure = figure_class()
        tips = _paint(figure, shown, kinds, prefix)
        target = io.BytesIO()
        canvas_class(figure).print_svg(target, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_a_page(target.getvalue(), tips, title, description, prefix)


@contextlib.contextmanager
def _plotting() -> Iterator[tuple[t.Any, t.Any]]:
    """matplotlib without a display, without the settings of whoever runs Ansible, and without a word on the screen."""
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise PlottingMissing("matplotlib is not installed for the Python that runs Ansible; 'pip install matplotlib' there draws the picture") from exc
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    own = {"svg.fonttype": "none", "svg.hashsalt": "unimem", "text.usetex": False, "text.parse_math": False, "axes.unicode_minus": False}
    try:
        with warnings.catch_warnings(), matplotlib.rc_context({**defaults, **own}):
            # a glyph that the measuring font lacks is the browser's matter
            warnings.simplefilter("ignore")
            yield Figure, FigureCanvasSVG
    finally:
        logger.setLevel(level)


def _paint(figure: t.Any, bars: Sequence[Bar], kinds: Mapping[str, Kind], prefix: str) -> dict[str, str]:
    """Paint the bars; return the tooltip of each segment by the id of its shape."""
    used = [name for name in kinds if any(segment.kind == name and segment.size > 0 for entry in bars for segment in entry.segments)]
    groups = sum(1 for before, entry in zip(("", *(entry.group for entry in bars)), bars, strict=False) if before != entry.group)
    rows = len(bars) + _HEADING * groups
    below = 0.55 + 0.2 * -(-len(used) // _LEGEND_COLUMNS)
    height = rows * _BAR + below
    figure.set_size_inches(_WIDTH, height)
    figure.patch.set_visible(False)
    axes = figure.add_axes((_LEFT / _WIDTH, below / height, (_WIDTH - _LEFT - 0.3) / _WIDTH, rows * _BAR / height))
    axes.patch.set_visible(False)
    most = max(max(entry.pool, sum(segment.size for segment in entry.segments)) for entry in bars) / GIB
    tips: dict[str, str] = {}
    position, last = 0.0, ""
    for number, entry in enumerate(bars):
        if entry.group != last:
            position += _HEADING
            axes.annotate(printable(entry.group, 80), (0, position - 0.32), **_at(_LEFT - 0.1), color=_INK, fontsize=_FONT + 1, fontweight="bold", va="center")
        last = entry.group
        axes.annotate(printable(entry.label, _NAME), (0, position + 0.5), **_at(_LEFT - 0.25), color=_INK, fontsize=_FONT, va="center")
        left = 0.0
        for index, segment in enumerate(entry.segments):
            width = segment.size / GIB
            if width <= 0:
                continue
            shape = axes.barh([position + 0.5], [width], left=left, height=0.76, color=kinds[segment.kind].colour, edgecolor=_INK, linewidth=0.6)[0]
            shape.set_gid(f"{prefix}-segment-{number}-{index}")
            shape.set_clip_on(False)
            tips[shape.get_gid()] = f"{printable(segment.name) or kinds[segment.kind].title}: {format_size(segment.size)}"
            if width > _NARROW * most:
                axes.text(left + width / 2, position + 0.5, f"{width:.1f}", color="#000000", fontsize=_FONT, ha="center", va="center")
            left += width
        if entry.pool:
            axes.plot([entry.pool / GIB] * 2, [position + 0.02, position + 0.98], color=_INK, linewidth=2.5, solid_capstyle="butt", clip_on=False)
        position += 1.0
    axes.set_xlim(0, most)
    axes.set_ylim(rows, 0)
    axes.set_yticks([])
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_INK)
    axes.tick_params(axis="x", colors=_INK, labelsize=_FONT - 1)
    axes.set_xlabel("GiB; a thick line is the end of a node's pool", color=_INK, fontsize=_FONT - 1)
    _legend(figure, [kinds[name] for name in used])
    return tips


def _at(inches: float) -> dict[str, t.Any]:
    """Where a text left of the axes begins."""
    return {"xytext": (-72 * inches, 0), "textcoords": "offset points", "ha": "left", "annotation_clip": False}


def _legend(figure: t.Any, entries: Sequence[Kind]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=kind.colour, edgecolor=_INK, linewidth=0.6, label=printable(kind.title, 60)) for kind in entries]
    style = {"frameon": False, "fontsize": _FONT - 1, "labelcolor": _INK, "borderaxespad": 0.2, "columnspacing": 1.2}
    figure.legend(handles=handles, loc="lower left", ncols=_LEGEND_COLUMNS, **style)


def _for_a_page(raw: bytes, tips: Mapping[str, str], title: str, description: str, prefix: str) -> str:
    """Make the drawing a part of a page: the page's text colour, tooltips, ids of its own, words for readers of the screen."""
    # written by matplotlib a moment ago, with every name made printable before
    root = ElementTree.fromstring(raw)
    for element in list(root):
        if element.tag == f"{{{_SVG}}}metadata":
            root.remove(element)
    for element in root.iter():
        if element.tag == f"{{{_SVG}}}style" and element.text:
            # a style sheet in an SVG holds for the whole page
            element.text = element.text.replace("*{", ".unimem-bars *{")
        _own_ids(element, prefix)
        for name in ("style", "fill", "stroke"):
            value = element.get(name)
            if value is not None and _INK in value:
                element.set(name, value.replace(_INK, "currentColor"))
        tip = tips.get(element.get("id", ""))
        if tip is not None:
            ElementTree.SubElement(element, f"{{{_SVG}}}title").text = tip
            element.insert(0, element[-1])
            del element[-1]
    for index, (tag, text) in enumerate((("title", title), ("desc", description))):
        words = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{prefix}-{tag}"})
        words.text = printable(text, 2000)
        root.insert(index, words)
    root.attrib.update({"role": "img", "aria-labelledby": f"{prefix}-title {prefix}-desc", "class": "unimem-bars"})
    # as wide as the page lets it be
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _own_ids(element: ElementTree.Element, prefix: str) -> None:
    """Ids are unique in a page, and matplotlib's are the same in every drawing."""

    def own(name: str) -> str:
        return name if name.startswith(f"{prefix}-") else f"{prefix}-{name}"

    identity = element.get("id")
    if identity is not None:
        element.set("id", own(identity))
    for name in ("href", f"{{{_XLINK}}}href"):
        target = element.get(name)
        if target is not None and target.startswith("#"):
            element.set(name, "#" + own(target[1:]))
    for name in ("clip-path", "style"):
        value = element.get(name)
        if value is not None and "url(#" in value:
            before, _url, after = value.partition("url(#")
            element.set(name, f"{before}url(#{own(after)}")
