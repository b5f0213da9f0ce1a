# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make bench`: what things cost, as ratios to a baseline of the same run. One file a subject in tools/benches.

Each subject measures itself in rounds and prints medians. The lab is brought up once, in the seed's situation, and stays up.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from types import ModuleType

from tools import benches, environments, lab
from tools.console import ToolError, main, say


def subjects() -> list[str]:
    """The names of all subjects."""
    return sorted(found.name for found in pkgutil.iter_modules(benches.__path__) if not found.name.startswith("_"))


def load(names: list[str]) -> dict[str, ModuleType]:
    """The subjects of these names, all of them where none is given. ToolError for one that does not exist."""
    known = subjects()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ToolError(f"no subject is called {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: importlib.import_module(f"tools.benches.{name}") for name in dict.fromkeys(names or known)}


def _needs_lab(subject: ModuleType) -> bool:
    return bool(getattr(subject, "NEEDS_LAB", True))


def _run() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds (default: 7); one more warms up")
    parser.add_argument("--list", action="store_true", help="say what can be measured, and measure nothing")
    parser.add_argument("subject", nargs="*", help="what to measure (default: everything)")
    options = parser.parse_args()
    chosen = load(options.subject)
    if options.list:
        for name, subject in chosen.items():
            say(f"{name:<16} {(subject.__doc__ or '').strip().splitlines()[0]}")
        return 0
    if options.rounds < 3:
        raise ToolError("--rounds is a number from 3 up: fewer have no median worth printing")
    environment = environments.development()
    if any(_needs_lab(subject) for subject in chosen.values()) and lab.control(environment, "up") != 0:
        raise ToolError("the lab did not come up; its own message is above")
    for name, subject in chosen.items():
        say(f"\n=== {name}")
        subject.measure(environment, options.rounds)
    return 0


if __name__ == "__main__":
    main(_run)
