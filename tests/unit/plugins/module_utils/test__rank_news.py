# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Waiting beside a rank: what ends it, and what does not."""

from __future__ import annotations

import typing as t
from collections.abc import Iterator

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_news import wait_for_news

ID = "ab" * 32
STAMP = "2026-12-01T03:32:58.405787837Z "
READY = STAMP + "[rank] 2026-12-01T03:32:58Z the group is ready"


def container(running: bool = True, terminal: bool = False) -> dict[str, t.Any]:
    return {"Id": ID, "State": {"Running": running, "StartedAt": "2026-12-01T03:32:40.5Z"}, "Config": {"Tty": terminal}}


class FakeEngine:
    """Containers, and a log that comes line by line; what was read of it is counted, and how long was waited for the container's end."""

    def __init__(self, containers: list[dict[str, t.Any]], lines: list[str], broken: EngineError | None = None) -> None:
        self.containers, self.lines, self.broken = containers, lines, broken
        self.read = 0
        self.waited: list[float] = []

    def describe_labelled(self, label: str) -> list[dict[str, t.Any]]:
        assert label == "io.unimem.deployment=default"
        return self.containers

    def read_log(self, container_id: str, seconds: float, since: int = 0, follow: int | None = None) -> Iterator[bytes]:
        # Nothing of an earlier start of the container, and not all of a long log again.
        assert (container_id, since) == (ID, 1796095960) and follow is not None and 0 < follow <= 1000 and 0 < seconds <= 30
        for line in self.lines:
            self.read += 1
            data = line.encode() + b"\n"
            yield data if self.containers[0]["Config"]["Tty"] else b"\x01\0\0\0" + len(data).to_bytes(4, "big") + data
        if self.broken is not None:
            raise self.broken

    def wait(self, container_id: str, seconds: float) -> None:
        assert container_id == ID
        self.waited.append(seconds)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_supervisors_word_ends_the_wait_at_once(terminal: bool) -> None:
    engine = FakeEngine([container(terminal=terminal)], [STAMP + "[engine] loads", READY, STAMP + "[engine] serves"])
    wait_for_news(engine, "default", 30.0)
    assert engine.read == 2 and not engine.waited


@pytest.mark.parametrize(
    "line",
    [
        STAMP + "[engine] [rank] 2026-12-01T03:32:58Z the group is ready",
        STAMP + "[engine] the group is ready",
        STAMP + "[rank] 2026-12-01T03:32:58Z the group is ready soon",
        "[rank] 2026-12-01T03:32:58Z the group is ready",
        "",
    ],
)
def test_nobody_elses_word_does(line: str) -> None:
    engine = FakeEngine([container()], [line, STAMP + "[rank] 2026-12-01T03:32:59Z ended"])
    wait_for_news(engine, "default", 30.0)
    assert engine.read == 2
    # The log has ended: so will the container.
    assert len(engine.waited) == 1 and 0 < engine.waited[0] <= 2


@pytest.mark.parametrize("containers", [[], [container(running=False)], [container(), container()], [{"Id": ID}]])
def test_without_one_rank_that_runs_there_is_nothing_to_wait_for(containers: list[dict[str, t.Any]]) -> None:
    engine = FakeEngine(containers, [READY])
    wait_for_news(engine, "default", 30.0)
    assert engine.read == 0 and not engine.waited


def test_an_engine_that_is_restarted_is_no_failure_of_the_wait() -> None:
    engine = FakeEngine([container()], [STAMP + "[engine] loads"], EngineError("unreachable", "restarted"))
    wait_for_news(engine, "default", 30.0)
    assert engine.read == 1 and not engine.waited


def test_without_a_log_that_can_be_read_the_end_is_waited_for() -> None:
    engine = FakeEngine([container()], [], EngineError("failed", "configured logging driver does not support reading"))
    wait_for_news(engine, "default", 30.0)
    assert len(engine.waited) == 1 and 25 < engine.waited[0] <= 30
