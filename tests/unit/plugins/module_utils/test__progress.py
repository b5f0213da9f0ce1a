# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.unimem.dgx_spark.plugins.module_utils._progress import ProgressFile


def test_it_says_how_far_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    progress = ProgressFile(str(path))
    progress.write(5, 10)
    told = json.loads(path.read_text())
    assert (told["sent"], told["total"], told["waiting"]) == (5, 10, False) and told["seconds"] >= 0
    assert path.stat().st_mode & 0o777 == 0o600
    progress.write(0, 0, waiting=True)
    assert json.loads(path.read_text())["waiting"] is True
    progress.end()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    for path in (None, str(tmp_path / "no" / "folder")):
        progress = ProgressFile(path)
        progress.write(1, 2)
        progress.end()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "progress.new").symlink_to(tmp_path / "victim")
    ProgressFile(str(tmp_path / "progress")).write(1, 2)
    assert not (tmp_path / "victim").exists()
