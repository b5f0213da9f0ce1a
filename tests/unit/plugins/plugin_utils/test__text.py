# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._text import printable, size, table


def test_what_does_not_print_is_a_question_mark() -> None:
    assert printable("a\x1b[2Jb\nc\u202ed\udcffe") == "a?[2Jb?c?d?e"
    assert printable("Größe 大") == "Größe 大"
    assert printable(None) == "None"


def test_a_long_name_is_cut_and_says_so() -> None:
    assert printable("x" * 200) == "x" * 200
    assert printable("x" * 201) == "x" * 199 + "…"
    assert printable("y" * 10, 4) == "yyy…"


def test_sizes_that_are_not_known() -> None:
    assert size(1 << 30) == "1.0 GiB"
    assert [size(value) for value in (None, "7", True)] == ["unknown"] * 3


def test_columns() -> None:
    assert table([["node", "needs", "verdict"], ["a", "1", "fits"]], left=(0, 2)) == ["node  needs  verdict", "a         1  fits"]
