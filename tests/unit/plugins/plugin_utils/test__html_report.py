# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The run on one clock, its drawings, and the page: whole, self-contained, and safe against whatever a name or a log says."""

from __future__ import annotations

import typing as t
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _html_report, _plot, _timeline
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._plot import Flag, Line
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._timeline import Mark, Sample

GIB = 1024**3
EVIL = "</script><script>alert(1)</script>\"'&<b>"


def memory(available: int, free: int = GIB) -> dict[str, t.Any]:
    return {"memory": {"total": 6 * GIB, "available": available, "free": free, "page_cache": GIB}, "holders": []}


def node(**more: t.Any) -> dict[str, t.Any]:
    """A node whose clock is ten seconds behind the controller's."""
    log = {
        "head": [
            "1970-01-01T00:16:51Z [rank] 1970-01-01T00:16:51Z engine started, pid 7",
            "1970-01-01T00:16:52Z [engine] Loading safetensors checkpoint shards:  14% Completed | 1/7",
            "1970-01-01T00:16:53Z [engine] Loading safetensors checkpoint shards:  86% Completed | 6/7",
        ],
        "tail": [],
        "memory": [[1015.0, 4 * GIB, GIB, GIB], [1020.0, 2 * GIB, GIB, GIB]],
        "end": {"time": 1030.0, "status": 70, "reason": "rank 0 ended"},
    }
    return {
        "moments": {"before": memory(5 * GIB), "at_launch": memory(5 * GIB, 4 * GIB), "after": memory(2 * GIB)},
        "times": {"before": 1000.0, "at_launch": 1018.0, "after": 1050.0},
        "trajectory": [[0.0, 4 * GIB], [2.0, 4 * GIB + 1], [5.0, 5 * GIB]],
        "budget": {"verdict": "fits_after_stopping", "need": 5 * GIB, "have": 4 * GIB, "will_take": 3 * GIB, "terms": {"weights": GIB, "kv_cache": 2 * GIB}},
        "actions": [
            {"action": "stop", "layer": "unit", "target": "vllm-embeddings.service", "result": "stopped"},
            {"action": "stop", "layer": "container", "target": "other", "result": "not needed any more"},
        ],
        "ranks": [{"rank": 1, "started": 1010.0, "log": log}],
        "readings_at": 1060.0,
        "clock": 1050.0,
        **more,
    }


def test_samples_of_all_sources_are_on_one_clock() -> None:
    found = _timeline.samples(node())
    assert [sample.time for sample in found] == [1000.0, 1013.0, 1015.0, 1018.0, 1025.0, 1030.0, 1050.0]
    assert found[4] == Sample(1025.0, 4 * GIB, GIB, GIB), "the rank's own reading, by its node's clock plus ten seconds"


def test_what_was_stopped_and_started_is_marked() -> None:
    found = _timeline.marks(node(), "vllm_mp")
    assert Mark(1013.0, "stop", "stop unit vllm-embeddings.service: stopped") in found
    assert not any("other" in mark.text for mark in found)
    assert Mark(1020.0, "start", "rank 1 started") in found
    assert Mark(1022.0, "stage", "rank 1 loads the weights") in found, "once, however often it is said"
    assert Mark(1040.0, "end", "rank 1 ended: rank 0 ended") in found
    assert sum("loads the weights" in mark.text for mark in found) == 1


@pytest.mark.parametrize("hole", [{"moments": {}}, {"times": {}}, {"trajectory": None}, {"ranks": None}, {"clock": None}, {"ranks": [{}]}, {"actions": None}])
def test_a_node_with_holes_is_still_drawn(hole: dict[str, t.Any]) -> None:
    holed = node(**hole)
    assert isinstance(_timeline.samples(holed), list) and isinstance(_timeline.marks(holed, "vllm_mp"), list)
    assert "<html" in _html_report.render({"a": holed}, {"model": "m", "engine": "vllm_mp"}, ["x"], None, None)


def test_steps_end_where_the_next_begins() -> None:
    found = _timeline.steps([{"name": "a", "at": 1.0}, {"name": "b", "at": 3.0}, {"name": "c"}], 10.0)
    assert found == [("a", 1.0, 3.0), ("b", 3.0, 10.0)]
    assert _timeline.steps([], 10.0) == []


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 6, [0, 2, 4, 6]), (0, 0, [0]), (3, 97, [20, 40, 60, 80]), (0, 0.5, [0, 0.1, 0.2, 0.3, 0.4, 0.5])],
)
def test_ticks_are_round(low: float, high: float, values: list[float]) -> None:
    assert _plot.ticks(low, high) == pytest.approx(values)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (185, "3:05 min"), (3723, "1:02:03 h")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert _plot.duration(seconds) == text


def test_drawings_are_well_formed_and_stay_inside() -> None:
    drawing = _plot.plot(
        EVIL, [Line("free", EVIL, [(0.0, 1.0), (1.0, None), (2.0, 99.0), (3.0, -5.0)])], [Flag(99.0, "stop", "1", EVIL)], EVIL, 6.0, (0.0, 3.0)
    )
    root = ElementTree.fromstring(drawing)
    assert "script" not in {element.tag for element in root.iter()}
    for line in root.iter("polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert _plot.LEFT - 1 <= x <= _plot.WIDTH and _plot.TOP - 1 <= y <= _plot.TOP + _plot.PLOT_HEIGHT + 1
    assert len(list(root.iter("polyline"))) == 2, "a gap is a gap"
    assert _plot.plot("x", [Line("a", "b", [])], [], "GiB", 1.0) == "" and _plot.bars("x", []) == ""
    ElementTree.fromstring(_plot.bars(EVIL, [(EVIL, 1.0, 1.0), ("b", 1.0, 9.0)]))


class Page(HTMLParser):
    """The tags of a page, and whether they close as they open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def rendered(**common: t.Any) -> str:
    result = {"endpoint": EVIL, "completion": {"prompt": EVIL, "text": EVIL}}
    diagnosis = {
        "class": "memory",
        "meaning": EVIL,
        "node": EVIL,
        "rank": 1,
        "at": "now",
        "line": EVIL,
        "remedy": EVIL,
        "timeline": [{"line": EVIL, "at": "x"}],
    }
    told = {"model": EVIL, "engine": "vllm_mp", "result": result, "steps": [{"name": EVIL, "at": 1000.0}, {"name": "b", "at": 1010.0}], **common}
    evil = node(actions=[{"action": EVIL, "layer": EVIL, "target": EVIL, "result": EVIL}])
    return _html_report.render({EVIL: evil, "b": node()}, told, [EVIL], diagnosis, 1055.0)


def test_the_page_is_one_file_and_nothing_in_it_comes_from_elsewhere_or_runs() -> None:
    for text in (rendered(), rendered(failed=True)):
        page = Page(text)
        assert page.open == [] and page.tags.count("svg") == 3
        assert not {"script", "link", "img", "iframe", "object", "b"} & set(page.tags)
        assert not [name for name, _value in page.attributes if name.startswith("on") or name in ("src", "href")]
        assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
        assert "<script" not in text.replace("&lt;script", "")


def test_prediction_stands_beside_measurement() -> None:
    text = _html_report.render({"a": node()}, {"model": "m", "engine": "vllm_mp", "result": {}}, ["x"], None, 1055.0)
    assert _html_report.measured(node()) == (3 * GIB, 3 * GIB)
    assert "+0.0 %" in text and "available, as predicted: 2.0 GiB" in text and "kv cache" in text
    assert _html_report.measured({"moments": {}}) is None


def test_of_a_failure_the_cause_comes_first() -> None:
    text = rendered(failed=True)
    assert text.index("The cause") < text.index("Steps") < text.index("As text")
    assert "failed</span>" in text
