# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-test sanity on the oldest and on the newest supported core, with no ignore file.

ansible-test insists on a path that ends in ansible_collections/unimem/dgx_spark, so it gets a copy. It makes a virtual
environment for each of its tests below HOME; HOME is redirected into the cache, so that a fresh clone finds them again.
For pip it downloads a bootstrap script from a host that many networks do not reach; ansible-test looks into its cache
first (ansible/ansible#77304), where a small script of ours with the same job is put: it runs pip's own wheel.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tools import checkout, environments, pythons
from tools.console import Outcome, ToolError, beside, call, main, need, not_run, step, summary
from tools.environments import Environment
from tools.places import BUILD, cache_dir

#: The lab's programs are installed into its hosts (with a shebang, outside of Ansible) and are in no tarball; ruff and mypy look after them.
NOT_THE_COLLECTION = ("tests/lab/",)
GET_PIP = '''\
# Stands in for get-pip.py: installs what ansible-test asks for (pip itself among it) with pip {version} out of its wheel.
import os
import sys

sys.path.insert(0, {wheel!r})
from pip._internal.cli.main import main

words = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(main(["install", "--upgrade"] + words))
'''


def _pip_version(environment: Environment) -> str:
    """The pip that this ansible-test bootstraps its environments with, read from its own source."""
    found = sorted(environment.path.glob("lib/python3*/site-packages/ansible_test/_internal/python_requirements.py"))
    match = re.search(r"pip='([0-9.]+)'", found[0].read_text()) if found else None
    if match is None:
        raise ToolError(f"cannot tell which pip the ansible-test in {environment.path} wants: its python_requirements.py has changed")
    return match.group(1)


def _seed_pip(environment: Environment, home: Path) -> None:
    """Put the bootstrap script where ansible-test looks before it downloads one."""
    version = _pip_version(environment)
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / f"pip-{version}-py3-none-any.whl"
    if not wheel.is_file():
        download: list[str | Path] = [environment.python, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
        need([*download, "--dest", cache, f"pip=={version}"])
    (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(GET_PIP.format(version=version, wheel=str(wheel)))


def _home(environment: Environment) -> Path:
    """ansible-test's own HOME, with the user's pip settings and pip's cache still in reach."""
    home = cache_dir() / f"ansible-test-{environment.kind.core}-python{environment.python_version}"
    home.mkdir(parents=True, exist_ok=True)
    for name in (".config/pip", ".cache/pip"):
        real, link = Path.home() / name, home / name
        if real.is_dir() and not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(real)
    _seed_pip(environment, home)
    return home


def _variables(environment: Environment, home: Path) -> dict[str, str]:
    """HOME redirected, and the environment's commands before all others."""
    return {"HOME": str(home), "PATH": f"{environment.bin}{os.pathsep}{os.environ.get('PATH', '')}", "PYTHONPATH": ""}


def sanity(environment: Environment, extra: list[str]) -> int:
    """Run every sanity test of one core on the copy."""
    base = BUILD / f"sanity-{environment.kind.core}"
    tree = checkout.copy_below(base, NOT_THE_COLLECTION)
    argv: list[str | Path] = [environment.tool("ansible-test"), "sanity", "--venv", "--python", environment.python_version, "--color", "no", "--truncate", "0"]
    return call([*argv, *extra], _variables(environment, _home(environment)), tree)


def target_imports(environment: Environment, version: str) -> int:
    """Compile and import the modules' code on the oldest Python of a node."""
    python = pythons.find(version)
    if python is None:
        raise ToolError(environments.missing(f"target-{version}"))
    tree = checkout.copy_below(BUILD / f"sanity-{environment.kind.core}", NOT_THE_COLLECTION)
    variables = _variables(environment, _home(environment))
    variables["PATH"] += f"{os.pathsep}{python.parent}"
    argv: list[str | Path] = [environment.tool("ansible-test"), "sanity", "--test", "compile", "--test", "import", "--color", "no"]
    pins = ["--controller", f"origin:python={environment.python_version}", "--target-python", version]
    return call([*argv, *pins], variables, tree)


def _every_test(name: str, extra: list[str]) -> Outcome:
    """All of sanity on one core."""
    title = f"sanity, ansible-core {environments.KINDS[name].core}"
    if name != "dev" and environments.available(name) is None:
        return not_run(title, environments.missing(name))
    environment = environments.ensure(name)
    return step(f"{title}, Python {environment.python_version}", lambda: sanity(environment, extra))


def _oldest_target(name: str) -> Outcome:
    """The modules' code on the oldest Python of a node, with this environment's core."""
    oldest = environments.TARGETS[0]
    title = f"sanity, module code on Python {oldest}"
    if pythons.find(oldest) is None:
        return not_run(title, environments.missing(f"target-{oldest}"))
    return step(title, lambda: target_imports(environments.ensure(name), oldest))


def steps(extra: list[str]) -> list[Outcome]:
    """Both cores at the same time, since most of it is one process that computes; then the oldest target Python."""
    if not environments.available("newest"):
        return [_every_test("dev", extra), _every_test("newest", extra), _oldest_target("dev")]
    with beside(lambda: [_every_test("newest", extra), _oldest_target("newest")]) as finished:
        oldest_core = _every_test("dev", extra)
        return [oldest_core, *finished()]


def _run() -> int:
    return summary(steps(sys.argv[1:]))


if __name__ == "__main__":
    main(_run)
