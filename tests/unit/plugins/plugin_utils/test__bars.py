# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _bars
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._bars import POOL_KINDS, Bar, Segment, draw
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.plugin_utils.plotting import draws

GIB = 1 << 30
SVG = "{http://www.w3.org/2000/svg}"
PARTS = (Segment("held", int(11.7 * GIB), "container vllm_embeddings"), Segment("page_cache", 99 * GIB), Segment("free", 3 * GIB))
SEED = Bar("spark-02", "now", PARTS, 120 * GIB)
#: What a hostile node may call its processes: markup, a formula, a page's template, terminal controls, a change of direction.
HOSTILE = "</text><script>alert(1)</script>$\\frac{1}{0}$ {{ 7 * 7 }} \x1b[31m\x00\u202e &amp;"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in parsed(svg).iter(f"{SVG}text")]


@draws
def test_each_part_is_drawn_with_its_figure_and_its_tooltip() -> None:
    svg = draw([SEED], POOL_KINDS, "A title", "A description")
    shapes = {element.get("id"): element for element in parsed(svg).iter(f"{SVG}g") if "segment" in (element.get("id") or "")}
    assert set(shapes) == {"bars-segment-0-0", "bars-segment-0-1", "bars-segment-0-2"}
    tips = {name: element[0].text for name, element in shapes.items() if element[0].tag == f"{SVG}title"}
    assert tips == {
        "bars-segment-0-0": "container vllm_embeddings: 11.7 GiB",
        "bars-segment-0-1": "page cache, can be evicted: 99.0 GiB",
        "bars-segment-0-2": "free: 3.0 GiB",
    }
    # the narrow part has no figure in it, the others have
    assert {"spark-02", "now", "11.7", "99.0"} <= set(texts(svg))
    assert "3.0" not in texts(svg)


@draws
def test_widths_are_to_scale() -> None:
    svg = draw([SEED], POOL_KINDS, "t", "d")

    def width(identity: str) -> float:
        group = next(element for element in parsed(svg).iter(f"{SVG}g") if element.get("id") == identity)
        across = [float(pair.split()[0]) for pair in re.findall(r"[ML] ([0-9.]+ [0-9.]+)", next(iter(group.iter(f"{SVG}path"))).get("d") or "")]
        return max(across) - min(across)

    assert width("bars-segment-0-1") / width("bars-segment-0-0") == pytest.approx(99 / 11.7, rel=0.001)


@draws
def test_only_kinds_that_occur_are_in_the_legend() -> None:
    found = texts(draw([SEED], POOL_KINDS, "t", "d"))
    assert POOL_KINDS["held"].title in found
    assert POOL_KINDS["other"].title not in found


@draws
def test_it_reads_on_a_dark_page_and_on_a_light_one() -> None:
    """No colour of its own for text and lines but black figures on pale fills, and nothing painted behind."""
    svg = draw([SEED], POOL_KINDS, "t", "d")
    colours = {value.lower() for value in re.findall(r"#[0-9a-fA-F]{6}", svg)}
    assert "currentColor" in svg
    assert colours - {kind.colour.lower() for kind in POOL_KINDS.values()} <= {"#000000"}
    for kind in POOL_KINDS.values():
        red, green, blue = (int(kind.colour[at : at + 2], 16) for at in (1, 3, 5))
        assert 0.2126 * red + 0.7152 * green + 0.0722 * blue > 110, f"{kind} is too dark for black figures"


@draws
def test_readers_of_the_screen_get_words() -> None:
    root = parsed(draw([SEED], POOL_KINDS, "The pools", "spark-02 has little free", prefix="p"))
    assert root.get("role") == "img"
    named = {element.get("id"): element.text for element in root if element.tag in (f"{SVG}title", f"{SVG}desc")}
    assert named == {"p-title": "The pools", "p-desc": "spark-02 has little free"}
    assert (root.get("aria-labelledby") or "").split() == ["p-title", "p-desc"]


@draws
def test_two_drawings_share_no_id_and_refer_to_their_own() -> None:
    pages = [draw([SEED], POOL_KINDS, "t", "d", prefix=prefix) for prefix in ("one", "two")]
    ids = [{element.get("id") for element in parsed(page).iter() if element.get("id")} for page in pages]
    assert ids[0] and not ids[0] & ids[1]
    for page, own in zip(pages, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', page)) <= own


@draws
def test_hostile_names_are_text_and_nothing_else() -> None:
    svg = draw([Bar(HOSTILE, HOSTILE, (Segment("held", 99 * GIB, HOSTILE),), 100 * GIB)], POOL_KINDS, HOSTILE, HOSTILE)
    assert "<script" not in svg
    # parses, so no control character got through; the formula is not typeset but there as it was
    assert any("$\\frac{1}{0}$" in text for text in texts(svg))
    assert not [element for element in parsed(svg).iter() if element.tag == f"{SVG}script"]
    assert "\x1b" not in svg and "\u202e" not in svg


@draws
def test_it_needs_nothing_from_outside_and_is_the_same_each_time() -> None:
    svg = draw([SEED], POOL_KINDS, "t", "d")
    assert not re.findall(r"(?:href|src)=\"(?!#)", svg)
    assert "@import" not in svg and "<metadata" not in svg and "<!DOCTYPE" not in svg
    assert draw([SEED], POOL_KINDS, "t", "d") == svg


@draws
def test_settings_of_whoever_runs_it_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    plain = draw([SEED], POOL_KINDS, "t", "d")
    with matplotlib.rc_context({"text.usetex": True, "svg.fonttype": "path", "figure.facecolor": "red", "axes.facecolor": "red", "font.size": 40}):
        assert draw([SEED], POOL_KINDS, "t", "d") == plain


@draws
@pytest.mark.filterwarnings("error")
def test_letters_that_no_font_has_are_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    assert "\U0001f999 \u4f60" in "".join(texts(draw([Bar("\U0001f999 \u4f60", "now", SEED.segments)], POOL_KINDS, "t", "d")))
    assert capfd.readouterr() == ("", "")


def test_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw([Bar("a", "now", (Segment("free", 0),), 5)], POOL_KINDS, "t", "d")


def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(_bars.PlottingMissing, match="pip install matplotlib"):
        draw([SEED], POOL_KINDS, "t", "d")
