# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual environments below .build, made when missing and remade when a requirement or the interpreter changed.

dev        ansible-core 2.19, linters, molecule, pytest: everything but the newest core runs from here
newest     ansible-core 2.21 and pytest, where a Python 3.12 or newer is found
picture    ansible-core 2.19, pytest and the plotting library that a controller may have
hub        the Hugging Face Hub's client, as a node may have it: a program to run and nothing to import
sglang-X   the oldest and the newest SGLang that the role is for, without all that they depend on: only their parser is used
target-X   pytest for Python X: the modules' code as it runs on a node
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools import dependencies, pythons, system_packages
from tools.console import ToolError, main, need, say
from tools.places import BUILD, COLLECTIONS, REQUIREMENTS

TARGETS = ("3.9", "3.10", "3.12", "3.13", "3.14")


@dataclass(frozen=True)
class Kind:
    """One environment: its ansible-core, the Pythons it may use (best first), its requirement files.

    `what` names it where there is no core; `bare` is one of nothing but the wheels listed, neither their dependencies nor compiled code.
    """

    name: str
    core: str
    versions: tuple[str, ...]
    files: tuple[str, ...]
    what: str = "the modules' code on that Python"
    bare: bool = False


KINDS = {
    "dev": Kind("dev", "2.19", ("3.11", "3.12", "3.13"), ("core-2.19.txt", "pytest.txt", "lint.txt")),
    "newest": Kind("newest", "2.21", ("3.12", "3.13", "3.14"), ("core-2.21.txt", "pytest.txt")),
    "picture": Kind("picture", "2.19", ("3.11", "3.12", "3.13"), ("core-2.19.txt", "pytest.txt", "picture.txt")),
    "hub": Kind("hub", "", ("3.11", "3.12", "3.13"), ("hub.txt",), "the Hub's client"),
}
#: The oldest first. Their wheels are for these Pythons.
SGLANGS = ("sglang-oldest", "sglang-newest")
KINDS.update({name: Kind(name, "", ("3.11", "3.12", "3.13"), (f"{name}.txt",), "SGLang's own parser", bare=True) for name in SGLANGS})
KINDS.update({f"target-{version}": Kind(f"target-{version}", "", (version,), ("target.txt",)) for version in TARGETS})


@dataclass(frozen=True)
class Environment:
    """A ready environment and what to put before a command to run inside it."""

    kind: Kind
    python_version: str
    path: Path

    @property
    def bin(self) -> Path:
        return self.path / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    def tool(self, name: str) -> Path:
        """The path of one of its commands."""
        return self.bin / name

    def env(self) -> dict[str, str]:
        """Variables for commands that run from it: its commands first, and only the collections of this checkout."""
        return {
            "PATH": f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}",
            "VIRTUAL_ENV": str(self.path),
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            "ANSIBLE_HOME": str(BUILD / "ansible-home"),
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
            "PYTHONPATH": str(COLLECTIONS),
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def available(name: str) -> tuple[str, Path] | None:
    """The interpreter that this environment would use, or None where the machine has none."""
    return pythons.first(KINDS[name].versions)


def missing(name: str) -> str:
    """The sentence for an environment that cannot be made here."""
    kind = KINDS[name]
    wanted = " or ".join(kind.versions)
    what = f"ansible-core {kind.core}" if kind.core else kind.what
    return f"{what} needs Python {wanted}, and no working one was found (PATH, /usr/bin, /usr/local/bin, pyenv, uv)"


def _stamp(kind: Kind, python: Path) -> str:
    """What the environment depends on, as one hash."""
    digest = hashlib.sha256(f"{python}\n".encode())
    for name in kind.files:
        digest.update((REQUIREMENTS / name).read_bytes())
    return digest.hexdigest()


def _need_venv(version: str, python: Path) -> None:
    """Debian keeps pip's wheel for virtual environments in a package of its own."""
    probe = subprocess.run([str(python), "-I", "-c", "import ensurepip, venv"], check=False, capture_output=True)
    if probe.returncode != 0:
        system_packages.ensure([f"python{version}-venv"], f"virtual environments of Python {version}")


def install_prerequisites() -> None:
    """What apt has to install for any of the environments, at once: while something else may be using apt, ensure() then does not."""
    for name in KINDS:
        found = available(name)
        if found is not None:
            _need_venv(*found)


def _make_venv(version: str, python: Path, path: Path) -> None:
    _need_venv(version, python)
    need([python, "-m", "venv", "--clear", path])


def ensure(name: str) -> Environment:
    """Make the environment if it is missing or out of date, and return it."""
    kind = KINDS[name]
    found = available(name)
    if found is None:
        raise ToolError(missing(name) + "; on Debian 12 or Ubuntu 24.04 and newer: apt-get install python3 python3-venv")
    version, python = found
    path = BUILD / f"venv-{name}"
    stamp_file = path / "requirements.sha256"
    stamp = _stamp(kind, python)
    if not (stamp_file.is_file() and stamp_file.read_text() == stamp):
        say(f"making {path.relative_to(BUILD.parent)}: Python {version}, {', '.join(kind.files)} of tests/requirements")
        BUILD.mkdir(exist_ok=True)
        if path.exists():
            shutil.rmtree(path)
        _make_venv(version, python, path)
        arguments = ["--no-deps", "--only-binary", ":all:", "--no-compile"] if kind.bare else []
        arguments += [word for file in kind.files for word in ("-r", str(REQUIREMENTS / file))]
        need([path / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments])
        stamp_file.write_text(stamp)
    return Environment(kind, version, path)


def development() -> Environment:
    """The dev environment together with the collections it works on: what almost every tool starts with."""
    environment = ensure("dev")
    dependencies.fill(environment.python)
    return environment


def _run() -> int:
    names = sys.argv[1:] or ["dev"]
    for name in names:
        if name not in KINDS:
            raise ToolError(f"no environment is called {name}; there are {', '.join(KINDS)}")
        if name != "dev" and available(name) is None:
            say(f"!!! not made: {missing(name)}")
            continue
        environment = development() if name == "dev" else ensure(name)
        say(f"{name}: {environment.path} (Python {environment.python_version})")
    return 0


if __name__ == "__main__":
    main(_run)
