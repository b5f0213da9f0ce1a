# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Things timed against each other, and the table of it. Seconds depend on the machine, ratios of one run less so."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.console import ToolError, say
from tools.environments import Environment
from tools.places import ROOT


def in_turns(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Let each contestant measure itself once a round, in an order that changes from round to round; one more round warms up."""
    names = list(contestants)
    seen: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            took = contestants[name]()
            if number:
                seen[name].append(took)
    return seen


def seconds(
    environment: Environment,
    argv: Sequence[str | Path],
    variables: Mapping[str, str] | None = None,
    keep: Callable[[subprocess.CompletedProcess[str]], object] | None = None,
) -> float:
    """A command of the environment (its name, or a path), start to end. ToolError when it fails: a failure is quick, and no measurement.

    ``keep`` is given what it printed.
    """
    words = [str(environment.tool(str(argv[0]))) if "/" not in str(argv[0]) else str(argv[0]), *(str(word) for word in argv[1:])]
    start = time.monotonic()
    done = subprocess.run(
        words, check=False, env={**os.environ, **environment.env(), **(variables or {})}, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    took = time.monotonic() - start
    if done.returncode != 0:
        raise ToolError(f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    if keep is not None:
        keep(done)
    return took


def table(title: str, seen: Mapping[str, Sequence[float]], baseline: str, unit: str = "s", wanted: Mapping[str, float] | None = None) -> None:
    """Median, least and most of each contestant, its median as a multiple of the baseline's, and beside it what that is wanted to be at most."""
    base = statistics.median(seen[baseline])
    width = max(24, *(len(name) for name in seen))
    rounds = len(seen[baseline])
    say(f"\n{title} ({rounds} rounds)\n{'':<{width}} {'median ' + unit:>10} {'least':>8} {'most':>8} {'ratio':>7}")
    for name, values in seen.items():
        middle = statistics.median(values)
        say(f"{name:<{width}} {middle:10.3f} {min(values):8.3f} {max(values):8.3f} {middle / base:7.2f}{at_most(middle / base, (wanted or {}).get(name))}")


def at_most(value: float, wanted: float | None) -> str:
    """A figure's limit, and whether it is kept."""
    return "" if wanted is None else f"  wanted: {wanted:g} at most{'' if value <= wanted else ', MISSED'}"


def at_least(value: float, wanted: float | None) -> str:
    """The same for a figure that is to be large."""
    return "" if wanted is None else f"  wanted: {wanted:g} at least{'' if value >= wanted else ', MISSED'}"
