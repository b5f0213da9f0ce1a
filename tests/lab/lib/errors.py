# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception of the lab: a sentence for people, and what to do about it."""

from __future__ import annotations


class LabError(Exception):
    """Something that the person who runs the lab must know. ``problem`` says what, ``remedy`` what to do."""

    #: what lab.py ends with
    status = 1

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.remedy}" if self.remedy else self.problem


class CannotRunHere(LabError):
    """The machine lacks what the lab needs, and nothing was made. `make demo` shows a plan instead then."""

    status = 3
