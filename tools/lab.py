# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated Sparks as the Makefile uses them: up, down, and the tests that run on them."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from tools import environments
from tools.console import PASSED, Outcome, ToolError, call, main, not_run, say, step, summary
from tools.environments import Environment
from tools.places import ROOT

PROGRAM = ROOT / "tests" / "lab" / "lab.py"
SCENARIOS = ROOT / "extensions" / "molecule"
SWITCH = "UNIMEM_LAB"
PYTEST_FOUND_NONE = 5
#: lab.py's status when the machine lacks what the lab needs, and nothing was made.
CANNOT_RUN_HERE = 3


def control(environment: Environment, *arguments: str) -> int:
    """Run the lab's own program."""
    return call([environment.python, PROGRAM, *arguments], {**environment.env(), "PYTHONPATH": ""}, ROOT)


def switched_off() -> bool:
    """Whether the caller has said that this machine is not to run the lab. Nothing else makes the tests do without it."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise ToolError(f"{SWITCH} is {value!r}; it is `on` (the default) or `off`")
    return value == "off"


def end_to_end(environment: Environment, *arguments: str) -> int:
    """The stories of tests/lab/e2e, told by ansible-runner's events."""
    return call([environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/lab/e2e", *arguments], environment.env(), ROOT)


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


def steps(marker: str = "not soak") -> list[Outcome]:
    """The lab up, all that runs on it, the lab down again."""
    if switched_off():
        return [not_run("lab, end to end", f"{SWITCH}=off"), *[not_run(f"lab, molecule {name}", f"{SWITCH}=off") for name in scenarios()]]
    environment = environments.development()
    outcomes = [step("lab, up", lambda: control(environment, "up"))]
    try:
        if outcomes[0].state == PASSED:
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
