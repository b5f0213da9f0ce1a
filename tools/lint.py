# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make lint`: every check that reads the files and runs none of the product."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tools import environments, package
from tools.console import Outcome, ToolError, call, main, step, summary
from tools.environments import Environment
from tools.places import COLLECTIONS, NAME, NAMESPACE, ROOT

DOCS_OPTIONS = ("--plugin-docs", "--validate-collection-refs=all", "--disallow-unknown-collection-refs")
PYTHON_ROOTS = ("tools", "tests/lab")


def _mypy(environment: Environment) -> int:
    """Types: the collection under its real import name, then the tools and the lab."""
    variables = {**environment.env(), "MYPYPATH": str(COLLECTIONS)}
    mypy: list[str | Path] = [environment.tool("mypy"), "--config-file", ROOT / "pyproject.toml", "--cache-dir", ROOT / ".mypy_cache"]
    packages = []
    for folder in ("module_utils", "plugin_utils", "modules", "filter", "lookup", "action", "callback"):
        if any((ROOT / "plugins" / folder).glob("*.py")):
            packages += ["-p", f"ansible_collections.{NAMESPACE}.{NAME}.plugins.{folder}"]
    status = call([*mypy, *packages], variables, COLLECTIONS)
    return call([*mypy, *[ROOT / name for name in PYTHON_ROOTS]], {**environment.env(), "PYTHONPATH": ""}, ROOT) or status


def _ansible_lint(environment: Environment) -> int:
    """ansible-lint installs the collection into its home, once: a copy of an older state would hide what has come since."""
    shutil.rmtree(Path(environment.env()["ANSIBLE_HOME"]) / "collections" / "ansible_collections" / NAMESPACE, ignore_errors=True)
    return call([environment.tool("ansible-lint"), "--offline", "--profile", "production"], environment.env(), ROOT)


def checks(environment: Environment) -> dict[str, Callable[[], int]]:
    """All checks by name, quick ones first."""

    def run(*argv: str) -> Callable[[], int]:
        return lambda: call([environment.tool(argv[0]), *argv[1:]], environment.env(), ROOT)

    return {
        "ruff": run("ruff", "check", "."),
        "yamllint": run("yamllint", "--strict", "."),
        "reuse": run("reuse", "lint", "--lines"),
        "changelog": run("antsibull-changelog", "lint"),
        "repository": run("pytest", "-q", "tests/unit/repository"),
        "mypy": lambda: _mypy(environment),
        "package": lambda: package.check(environment),
        "docs": run("antsibull-docs", "lint-collection-docs", *DOCS_OPTIONS, "."),
        "ansible-lint": lambda: _ansible_lint(environment),
    }


def steps(only: list[str]) -> list[Outcome]:
    """Run the named checks, all of them where none is named."""
    known = checks(environments.development())
    unknown = sorted(set(only) - set(known))
    if unknown:
        raise ToolError(f"no check is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [step(f"lint, {name}", work) for name, work in known.items() if not only or name in only]


def _run() -> int:
    return summary(steps(sys.argv[1:]))


if __name__ == "__main__":
    main(_run)
