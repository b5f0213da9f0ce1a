# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make bench`: which subjects there are, who is measured when, and what the table says."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools import bench, lab, timing  # noqa: E402
from tools.console import ToolError  # noqa: E402


def test_every_subject_can_be_measured_and_says_what_it_is() -> None:
    assert "facts" in bench.subjects()
    for name, subject in bench.load([]).items():
        assert list(inspect.signature(subject.measure).parameters) == ["environment", "rounds"], name
        assert subject.__doc__, name


def test_a_subject_that_does_not_exist_is_a_sentence_with_those_that_do() -> None:
    assert list(bench.load(["facts", "facts"])) == ["facts"]
    with pytest.raises(ToolError, match="no subject is called speed, x; there are .*facts"):
        bench.load(["speed", "facts", "x"])


def test_each_is_measured_once_a_round_in_another_order_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []

    def contestant(name: str) -> float:
        order.append(name)
        return float(len(order))

    seen = timing.in_turns({name: (lambda name=name: contestant(name)) for name in "abc"}, 3)
    assert order == [*"abc", *"bca", *"cab", *"abc"]
    assert seen == {"a": [6.0, 8.0, 10.0], "b": [4.0, 9.0, 11.0], "c": [5.0, 7.0, 12.0]}


def test_the_table_has_medians_and_multiples_of_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    timing.table("x", {"ping": [1.0, 2.0, 9.0], "facts": [2.0, 3.0, 4.0]}, "ping")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "x (3 rounds)"
    assert lines[3].split() == ["ping", "2.000", "1.000", "9.000", "1.00"] and lines[4].split() == ["facts", "3.000", "2.000", "4.000", "1.50"]


def test_a_command_that_fails_is_no_measurement() -> None:
    environment = SimpleNamespace(env=dict, tool=lambda name: Path("/bin") / name)
    assert 0 <= timing.seconds(environment, ["true"]) < 10  # type: ignore[arg-type]
    with pytest.raises(ToolError, match="ended with 3: .*why"):
        timing.seconds(environment, ["/bin/sh", "-c", "echo why; exit 3"])  # type: ignore[arg-type]


def test_the_lab_comes_up_only_for_subjects_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    subject = SimpleNamespace(measure=lambda environment, rounds: done.append(rounds), NEEDS_LAB=False)
    monkeypatch.setattr(bench, "load", lambda names: {"x": subject})
    monkeypatch.setattr(bench.environments, "development", lambda: None)
    monkeypatch.setattr(lab, "control", lambda environment, *words: done.append(words) or 1)
    monkeypatch.setattr(sys, "argv", ["bench", "--rounds", "3"])
    assert bench._run() == 0 and done == [3]
    subject.NEEDS_LAB = True
    with pytest.raises(ToolError, match="did not come up"):
        bench._run()
    assert done == [3, ("up",)]
    monkeypatch.setattr(sys, "argv", ["bench", "--rounds", "2"])
    with pytest.raises(ToolError, match="from 3 up"):
        bench._run()
