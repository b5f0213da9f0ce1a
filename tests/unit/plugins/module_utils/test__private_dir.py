# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._private_dir import (
    PathError,
    open_private_directory,
    open_private_file,
    read_all,
    write_all,
)


def test_missing_parts_are_made_private(tmp_path: Path) -> None:
    os.close(open_private_directory(str(tmp_path / "a" / "b"), create=True))
    for part in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(part.stat().st_mode) == 0o700


def test_missing_is_told_from_unsafe(tmp_path: Path) -> None:
    with pytest.raises(PathError) as caught:
        open_private_directory(str(tmp_path / "a"))
    assert caught.value.missing


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_directory_open_to_others_is_refused_and_left_as_it_is(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "a"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(PathError, match="0700"):
        open_private_directory(str(place), create=True)
    assert stat.S_IMODE(place.stat().st_mode) == mode


def test_link_in_a_directory_of_ours_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    os.close(open_private_directory(str(tmp_path / "link")))


def test_link_that_others_could_have_planted_is_not(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (tmp_path / "real").mkdir(mode=0o700)
    shared.mkdir()
    (shared / "link").symlink_to(tmp_path / "real")
    shared.chmod(0o1777)
    with pytest.raises(PathError, match="others can write"):
        open_private_directory(str(shared / "link"))


def test_directory_below_one_that_others_can_rename_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "mine").mkdir(mode=0o700)
    shared.chmod(0o777)
    with pytest.raises(PathError, match="others can write"):
        open_private_directory(str(shared / "mine"))
    shared.chmod(0o1777)  # sticky, like /tmp: nobody else can rename what is ours
    os.close(open_private_directory(str(shared / "mine")))


def test_circle_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(PathError, match="too many links"):
        open_private_directory(str(tmp_path / "a"))


@pytest.mark.parametrize("path", ["relative", "/", "/tmp/../etc", "/tmp/a\0b"])
def test_paths_that_name_no_directory_of_their_own(path: str) -> None:
    with pytest.raises(PathError):
        open_private_directory(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.mkdir(mode=0o700)
    os.chown(place, 12345, 12345)
    with pytest.raises(PathError, match="belongs to uid 12345"):
        open_private_directory(str(place))


@pytest.fixture
def parent(tmp_path: Path) -> int:
    tmp_path.chmod(0o700)
    descriptor = open_private_directory(str(tmp_path))
    yield descriptor
    os.close(descriptor)


def test_files_that_are_not_plain_private_and_ours_alone(tmp_path: Path, parent: int) -> None:
    (tmp_path / "target").write_text("x")
    (tmp_path / "target").chmod(0o600)
    (tmp_path / "link").symlink_to("target")
    os.link(tmp_path / "target", tmp_path / "second")
    (tmp_path / "wide").write_text("x")
    (tmp_path / "wide").chmod(0o644)
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("link", "second", "wide", "directory", "fifo", "..", "a/b", ""):
        with pytest.raises(PathError) as caught:
            open_private_file(parent, name, os.O_RDONLY)
        assert not caught.value.missing, name
    with pytest.raises(PathError) as caught:
        open_private_file(parent, "nothing", os.O_RDONLY)
    assert caught.value.missing


def test_new_file_is_private(tmp_path: Path, parent: int) -> None:
    old = os.umask(0)
    try:
        descriptor = open_private_file(parent, "new", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    finally:
        os.umask(old)
    write_all(descriptor, b"x" * 200000)
    os.lseek(descriptor, 0, os.SEEK_SET)
    assert len(read_all(descriptor, 200000)) == 200000
    os.lseek(descriptor, 0, os.SEEK_SET)
    with pytest.raises(PathError, match="larger"):
        read_all(descriptor, 1000)
    os.close(descriptor)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
