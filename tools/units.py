# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make units`: the unit tests on both cores, and those of the modules' code on the Pythons that a node may have."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from tools import environments, pythons
from tools.console import Outcome, call, main, not_run, step, summary
from tools.environments import TARGETS, Environment
from tools.places import BUILD, ROOT

MODULE_TESTS = ("tests/unit/plugins/module_utils", "tests/unit/plugins/modules")
#: On every core. Neighbours stay together as far as that goes, for the fixtures that they share; ARGS='-n 0' for a debugger.
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "auto", "--dist", "worksteal")
#: Run on both cores' Pythons only: how the cost of a pattern grows is the same on all, and looking takes a minute each time.
SAME_ON_ALL = "tests/unit/plugins/module_utils/test_patterns_are_linear.py"
#: What is different where the plotting library is installed.
PICTURE_TESTS = ("tests/unit/plugins/plugin_utils", "tests/unit/playbooks/test_plan.py")

#: What downloads with the Hub's own client, from a Hub that the tests bring.
HUB_TESTS = ("tests/unit/roles/model_sync",)

#: What SGLang's own parser reads.
SGLANG_TESTS = ("tests/unit/plugins/plugin_utils/test__sglang_parser.py",)


def units(environment: Environment, extra: list[str]) -> int:
    """All unit tests, from this environment."""
    return call([environment.python, *PYTEST, "tests/unit", *extra], environment.env(), ROOT)


def picture_units(environment: Environment, extra: list[str]) -> int:
    """The tests of what is drawn, where a missing library is a failure and not a skip."""
    variables = {**environment.env(), "UNIMEM_PLOTTING": "required"}
    return call([environment.python, *PYTEST, *PICTURE_TESTS, *extra], variables, ROOT)


def hub_units(core: Environment, client: Environment, extra: list[str]) -> int:
    """The tests that run the Hub's client, where a missing one is a failure and not a skip."""
    return call([core.python, *PYTEST, *HUB_TESTS, *extra], {**core.env(), "UNIMEM_HF": str(client.tool("hf"))}, ROOT)


def sglang_units(core: Environment, extra: list[str]) -> int:
    """The tests that SGLang's parser reads command lines in. Made here, so that a wheel which cannot be had fails this step and no other."""
    interpreters = os.pathsep.join(str(environments.ensure(name).python) for name in environments.SGLANGS)
    return call([core.python, *PYTEST, *SGLANG_TESTS, *extra], {**core.env(), "UNIMEM_SGLANG": interpreters}, ROOT)


def _core_for_targets(core: Environment) -> Path:
    """A directory with nothing but a link to ansible-core: its module_utils run on older Pythons than its controller does."""
    place = BUILD / "target-core"
    place.mkdir(parents=True, exist_ok=True)
    source = sorted(core.path.glob("lib/python3*/site-packages/ansible"))[0]
    link = place / "ansible"
    if not link.is_symlink() or os.readlink(link) != str(source):
        link.unlink(missing_ok=True)
        link.symlink_to(source)
    return place


def target_units(core: Environment, environment: Environment, extra: list[str]) -> int:
    """The tests of modules and module_utils on one target Python."""
    variables = environment.env()
    variables["PYTHONPATH"] = os.pathsep.join([str(_core_for_targets(core)), variables["PYTHONPATH"]])
    present = [name for name in MODULE_TESTS if any((ROOT / name).glob("test_*.py"))]
    return call([environment.python, *PYTEST, f"--ignore={SAME_ON_ALL}", *present, *extra], variables, ROOT)


def steps(extra: list[str]) -> list[Outcome]:
    """Both cores and every target Python; what the machine lacks is reported as not run."""
    core = environments.development()
    outcomes = [step(f"units, ansible-core {core.kind.core}, Python {core.python_version}", lambda: units(core, extra))]
    if environments.available("newest") is None:
        outcomes.append(not_run(f"units, ansible-core {environments.KINDS['newest'].core}", environments.missing("newest")))
    else:
        newest = environments.ensure("newest")
        outcomes.append(step(f"units, ansible-core {newest.kind.core}, Python {newest.python_version}", lambda: units(newest, extra)))
    picture = environments.ensure("picture")
    outcomes.append(step(f"units, with the plotting library, Python {picture.python_version}", lambda: picture_units(picture, extra)))
    client = environments.ensure("hub")
    outcomes.append(step(f"units, with the Hub's client, Python {client.python_version}", lambda: hub_units(core, client, extra)))
    missing = next((name for name in environments.SGLANGS if environments.available(name) is None), None)
    title = "units, with SGLang's own parser"
    outcomes.append(not_run(title, environments.missing(missing)) if missing else step(title, lambda: sglang_units(core, extra)))
    # All tests have just run on the cores' own Pythons, those of the modules' code among them.
    done = {environments.ensure(name).python_version for name in ("dev", "newest") if environments.available(name)}
    for version in sorted(set(TARGETS) - done, key=lambda text: int(text.split(".")[1])):
        title = f"units, module code on Python {version}"
        if pythons.find(version) is None:
            outcomes.append(not_run(title, environments.missing(f"target-{version}")))
            continue
        target = environments.ensure(f"target-{version}")
        outcomes.append(step(title, functools.partial(target_units, core, target, extra)))
    return outcomes


def _run() -> int:
    return summary(steps(sys.argv[1:]))


if __name__ == "__main__":
    main(_run)
