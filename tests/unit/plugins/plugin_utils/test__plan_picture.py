# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _pool_bars
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._plan_picture import page
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.plugin_utils.plans import GIB, facts, plan
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.plugin_utils.plotting import draws

TWO = {"spark-01": facts(17.1, 115.8, held=0), "spark-02": facts(3.6, 101.9)}
HOSTILE = "</td></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'"


class Reader(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


def bars(made: dict[str, Any]) -> dict[tuple[str, str], dict[str, int]]:
    found = {}
    holders = [{"kind": "container", "name": "vllm_embeddings", "memory": int(11.7 * GIB)}]
    for name, node in made["nodes"].items():
        now = _pool_bars.pool_bar(name, "now", node["memory"], holders, {"vllm_embeddings"})
        for entry in (now, _pool_bars.plan_bar(name, "then", node["memory"], node["budget"])):
            found[name, entry.label] = {segment.kind: segment.size for segment in entry.segments}
    return found


# the bars ----------------------------------------------------------------------------------------------------------


def test_both_bars_fill_the_pool() -> None:
    found = bars(plan({"spark-02": facts(3.6, 101.9)}, gpu_memory_utilization=0.9))
    whole = int(119.7 * GIB)
    now, then = found["spark-02", "now"], found["spark-02", "then"]
    assert sum(now.values()) == sum(then.values()) == whole
    assert now["stopped"] == int(11.7 * GIB)
    assert now["page_cache"] == int(101.9 * GIB) - int(3.6 * GIB)
    # what is stopped is no longer among what stays
    assert then["stays"] == whole - int(101.9 * GIB) - int(11.7 * GIB)


def test_too_much_goes_beyond_the_end() -> None:
    made = plan({"spark-02": facts(3.6, 101.9)}, tensor_parallel=1)
    then = bars(made)["spark-02", "then"]
    assert sum(then.values()) - int(119.7 * GIB) == made["nodes"]["spark-02"]["budget"]["shortfall"]
    assert then["spare"] == 0


def test_each_term_of_a_budget_has_a_kind() -> None:
    assert list(_pool_bars.TERM_KINDS) == list(plan(TWO)["nodes"]["spark-01"]["budget"]["terms"])


def test_a_node_of_which_little_is_known() -> None:
    entry = _pool_bars.pool_bar("a", "now", {"total": None, "free": "x", "allocatable": True}, [{"kind": "process", "name": "y", "memory": None}])
    assert sum(segment.size for segment in entry.segments) == 0


# the page ----------------------------------------------------------------------------------------------------------


def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_without_the_library_there_are_the_figures_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch)
    made = page(plan(TWO))
    assert "pip install matplotlib" in made.message
    reader = Reader(made.html)
    assert "svg" not in reader.tags and "pip install matplotlib" in reader.words
    assert "101.9 GiB" in reader.words


@draws
def test_with_the_library_there_is_one_drawing_and_no_sentence() -> None:
    made = page(plan(TWO))
    reader = Reader(made.html)
    assert made.message == "" and reader.tags.count("svg") == 1 and reader.open == []
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))


@draws
def test_a_plan_of_which_nothing_is_known_has_a_page_too() -> None:
    made = page(plan({"spark-01": {"class": "unified", "memory": {}, "processes": []}}))
    assert "nothing to draw" in made.message and Reader(made.html).open == []


def test_the_table_has_all_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch)
    words = Reader(page(plan(TWO, gpu_memory_utilization=0.9)).html).words
    for expected in ("spark-02 (decides)", "58.1 GiB", "fits once something is stopped", "vllm_embeddings", "Evict the page cache"):
        assert expected in words, expected
    assert words.index("What would help") < words.index("What was assumed")


def test_it_loads_nothing_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch)
    made = page(plan(TWO)).html
    reader = Reader(made)
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert not [name for name, _value in reader.attributes if name in ("src", "href") or name.startswith("on")]
    assert "default-src 'none'" in made and not re.search(r"https?://|@import|url\(", made)


def test_it_follows_light_and_dark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch)
    made = page(plan(TWO)).html
    assert "color-scheme: light dark" in made and "background: Canvas; color: CanvasText" in made
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b", made)


@pytest.mark.parametrize("drawing", [pytest.param(True, marks=draws), False])
def test_hostile_names_are_text(drawing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not drawing:
        without_library(monkeypatch)
    made = plan({HOSTILE: facts(3.6, 101.9, name=HOSTILE)}, model=HOSTILE)
    budget = made["nodes"][HOSTILE]["budget"]
    budget["stop"] = [{"name": HOSTILE, "memory": GIB}]
    budget["problems"].append({"code": "x", "message": HOSTILE, "severity": "warning"})
    budget["remedies"].append({"action": "x", "message": HOSTILE})
    budget["assumptions"].append(HOSTILE)
    made["engine"] = made["verdict"] = HOSTILE
    reader = Reader(page(made).html)
    assert not {"script", "img"} & set(reader.tags)
    assert not [name for name, _value in reader.attributes if name.startswith("on")]
    assert reader.open == []
    assert "<script>alert(1)</script>" in reader.words
