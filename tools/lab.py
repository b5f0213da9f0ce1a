# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated Sparks as the Makefile uses them: up, down, and the tests that run on them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import environments
from tools.console import PASSED, Outcome, ToolError, call, main, not_run, say, step, summary
from tools.environments import Environment
from tools.places import BUILD, ROOT

PROGRAM = ROOT / "tests" / "lab" / "lab.py"
SCENARIOS = ROOT / "extensions" / "molecule"
SWITCH = "UNIMEM_LAB"
PYTEST_FOUND_NONE = 5
PREPARED = BUILD / "lab-prepare.log"
#: lab.py's status when the machine lacks what the lab needs, and nothing was made.
CANNOT_RUN_HERE = 3


def control(environment: Environment, *arguments: str) -> int:
    """Run the lab's own program."""
    return call([environment.python, PROGRAM, *arguments], {**environment.env(), "PYTHONPATH": ""}, ROOT)


@contextmanager
def preparation(environment: Environment) -> Iterator[subprocess.Popen[bytes] | None]:
    """Build what the hosts are made of beside the block, which is not about the lab; its output is kept until prepared() prints it."""
    if switched_off():
        yield None
        return
    argv = [str(environment.python), str(PROGRAM), "prepare"]
    say(f"+ {' '.join(argv)} &  (its output is in {PREPARED.relative_to(ROOT)}, and comes below when the lab's turn comes)")
    BUILD.mkdir(exist_ok=True)
    with PREPARED.open("wb") as log:
        process = subprocess.Popen(
            argv, env={**os.environ, **environment.env(), "PYTHONPATH": ""}, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def prepared(process: subprocess.Popen[bytes]) -> int:
    """Wait for preparation(), print what it said, and return its status."""
    status = process.wait()
    say(PREPARED.read_text(encoding="utf-8", errors="replace").rstrip())
    return status


def switched_off() -> bool:
    """Whether the caller has said that this machine is not to run the lab. Nothing else makes the tests do without it."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise ToolError(f"{SWITCH} is {value!r}; it is `on` (the default) or `off`")
    return value == "off"


def end_to_end(environment: Environment, *arguments: str) -> int:
    """The stories of tests/lab/e2e, told by ansible-runner's events. Those that take longest are listed: their time is what all have to fit into."""
    argv: list[str | Path] = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=20", "tests/lab/e2e", *arguments]
    return call(argv, environment.env(), ROOT)


def marked(environment: Environment, marker: str) -> int:
    """All tests with a marker, on the lab and off it; that there are none is said, and is no failure."""
    argv: list[str | Path] = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit", "tests/lab", "-m", marker]
    status = call(argv, environment.env(), ROOT)
    if status == PYTEST_FOUND_NONE:
        say(f"no test is marked {marker}")
        return 0
    return status


def molecule(environment: Environment, scenario: str) -> int:
    """One role's scenario: converge, converge again without a change, verify."""
    return call([environment.tool("molecule"), "test", "--scenario-name", scenario], environment.env(), ROOT)


def scenarios() -> list[str]:
    """The scenarios by name."""
    return sorted(path.parent.name for path in SCENARIOS.glob("*/molecule.yml"))


def steps(marker: str = "not soak", preparing: subprocess.Popen[bytes] | None = None) -> list[Outcome]:
    """The lab up, all that runs on it, the lab down again. ``preparing``: what preparation() started."""
    if switched_off():
        return [not_run("lab, end to end", f"{SWITCH}=off"), *[not_run(f"lab, molecule {name}", f"{SWITCH}=off") for name in scenarios()]]
    environment = environments.development()
    outcomes = [step("lab, prepared beside the steps above", functools.partial(prepared, preparing))] if preparing else []
    outcomes.append(step("lab, up", lambda: control(environment, "up")))
    try:
        if outcomes[-1].state == PASSED:
            outcomes.append(step("lab, end to end", lambda: end_to_end(environment, "-m", marker)))
            for name in scenarios():
                outcomes.append(step(f"lab, molecule {name}", functools.partial(molecule, environment, name)))
        else:
            say(f"!!! Without the lab nothing has been deployed. On a machine that cannot run it, {SWITCH}=off tests the rest and says so.")
            outcomes.append(not_run("lab, end to end", "the lab did not come up"))
    finally:
        outcomes.append(step("lab, down", lambda: control(environment, "down")))
    return outcomes


def _run() -> int:
    if sys.argv[1:2] == ["test"]:
        return summary(steps())
    return control(environments.development(), *sys.argv[1:])


if __name__ == "__main__":
    main(_run)
