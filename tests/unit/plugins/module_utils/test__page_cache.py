# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _page_cache
from ansible_collections.unimem.dgx_spark.plugins.module_utils._page_cache import drop_all, evict_files
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, RunResult


def test_plain_files_below_a_directory_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model" / "deep").mkdir(parents=True)
    (tmp_path / "model" / "a").write_text("x")
    (tmp_path / "model" / "deep" / "b").write_text("x")
    (tmp_path / "outside").write_text("x")
    (tmp_path / "model" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "model" / "loop").symlink_to(tmp_path / "model")
    os.mkfifo(tmp_path / "model" / "fifo")
    advised: list[str] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, *rest: advised.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    assert evict_files([str(tmp_path / "model"), str(tmp_path / "outside")]) == (3, [])
    assert sorted(advised) == sorted(str(tmp_path / name) for name in ("model/a", "model/deep/b", "outside"))


def test_paths_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    count, problems = evict_files([str(tmp_path / "none"), str(tmp_path / "fifo")])
    assert count == 0 and "No such file" in problems[0] and "neither" in problems[1]


def test_a_tree_that_is_no_model_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_text("x")
    monkeypatch.setattr(_page_cache, "MAX_FILES", 3)
    count, problems = evict_files([str(tmp_path)])
    assert count == 3 and "more than 3 files" in problems[0]


def test_the_whole_cache_needs_root() -> None:
    assert "needs root" in str(drop_all(FakeWorld(uid=1000), 5))


def test_dirty_pages_are_written_first_and_three_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knob = tmp_path / "drop_caches"
    knob.write_text("")
    monkeypatch.setattr(_page_cache, "DROP_CACHES", str(knob))
    hanging = FakeWorld(commands={("sync",): RunResult(-9, timed_out=True)})
    assert "has not ended within 5 s" in str(drop_all(hanging, 5)) and knob.read_text() == ""
    assert drop_all(FakeWorld(commands={("sync",): RunResult(0)}), 5) is None and knob.read_text() == "3\n"


def test_a_read_only_proc_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_page_cache, "DROP_CACHES", str(tmp_path / "none"))
    assert "cannot be written" in str(drop_all(FakeWorld(commands={("sync",): RunResult(0)}), 5))
