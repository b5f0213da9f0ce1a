# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._copy_progress import STALE, Board, Share, duration, line

GIB = 1 << 30


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_line_has_bytes_rate_and_time_left() -> None:
    assert line([Share("spark-02", 30 * GIB, 120 * GIB, 10.0)]) == "copy: 30.0 GiB of 120.0 GiB (25 %), 3.0 GiB/s, 30 s left, to spark-02"


def test_the_slowest_of_several_is_named_and_counts_for_the_time_left() -> None:
    done = Share("spark-04", 120 * GIB, 120 * GIB, 20.0, finished=True)
    shares = [Share("spark-02", 90 * GIB, 120 * GIB, 30.0), Share("spark-03", 30 * GIB, 120 * GIB, 30.0), done]
    assert line(shares) == "copy: 240.0 GiB of 360.0 GiB (66 %), 4.0 GiB/s, 1 min 30 s left, 1 of 3 hosts done, slowest spark-03 (25 %)"


def test_a_copy_that_waits_for_another_says_so() -> None:
    text = line([Share("spark-02", 0, GIB, 0.0, waiting=True)])
    assert "spark-02: an earlier copy has to end first" in text and "left" not in text.replace("has to end first", "")


def test_nothing_to_send_is_no_division_by_zero() -> None:
    assert "100 %" in line([Share("spark-02", 0, 0, 0.0)])


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7260, "2 h 1 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_on_a_terminal_a_line_is_due_every_five_seconds(tmp_path: Path, clock: Clock) -> None:
    board = Board(str(tmp_path / "b"), True, clock)
    printed = []
    for second in range(21):
        clock.now += 1
        if board.tell(Share("spark-02", second, 1000, float(second))):
            printed.append(second)
    assert printed == [0, 5, 10, 15, 20]


def test_in_a_log_a_line_is_due_every_tenth(tmp_path: Path, clock: Clock) -> None:
    board = Board(str(tmp_path / "b"), False, clock)
    printed = []
    for percent in range(0, 101, 2):
        clock.now += 1
        if board.tell(Share("spark-02", percent, 100, percent + 1.0, finished=percent == 100)):
            printed.append(percent)
    assert printed == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


def test_workers_that_know_one_copy_each_print_one_line_about_all(tmp_path: Path, clock: Clock) -> None:
    boards = {host: Board(str(tmp_path / "b"), True, clock) for host in ("spark-02", "spark-03")}
    assert boards["spark-02"].tell(Share("spark-02", 10, 100, 1.0))
    assert boards["spark-03"].tell(Share("spark-03", 5, 100, 1.0)) is None
    clock.now += 5
    text = boards["spark-03"].tell(Share("spark-03", 20, 100, 6.0))
    assert text and "slowest spark-02" in text and "of 2 hosts" in text


def test_a_copy_that_has_ended_before_another_one_begins_is_still_one_of_them(tmp_path: Path, clock: Clock) -> None:
    board = Board(str(tmp_path / "b"), False, clock)
    assert board.tell(Share("spark-02", 100, 100, 1.0, finished=True))
    assert board.tell(Share("spark-03", 0, 100, 0.0)) is None
    text = board.tell(Share("spark-03", 60, 100, 1.0))
    assert text and "(80 %)" in text and "1 of 2 hosts done, slowest spark-03" in text


def test_a_worker_that_is_gone_is_not_counted(tmp_path: Path, clock: Clock) -> None:
    board = Board(str(tmp_path / "b"), True, clock)
    board.tell(Share("spark-02", 10, 100, 1.0))
    clock.now += STALE + 1
    text = board.tell(Share("spark-03", 10, 100, 1.0))
    assert text and "to spark-03" in text
