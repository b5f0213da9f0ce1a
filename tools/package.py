# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the collection's tarball, installs it into an empty directory, and uses it there as a user would."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from tools import environments
from tools.console import ToolError, main, need, need_quietly, say
from tools.dependencies import WANTED
from tools.places import BUILD, COLLECTIONS, NAME, NAMESPACE, ROOT

PUBLISHED = {
    "CHANGELOG.md", "CHANGELOG.rst", "COPYING", "FILES.json", "LICENSES", "MANIFEST.json", "README.md", "REUSE.toml",
    "changelogs", "docs", "inventory", "meta", "playbooks", "plugins", "roles",
}  # fmt: skip


def build(environment: environments.Environment, place: Path) -> Path:
    """Build the tarball from the checkout as it lies there, litter and all: build_ignore has to keep that out."""
    place.mkdir(parents=True, exist_ok=True)
    need([environment.tool("ansible-galaxy"), "collection", "build", "--force", "--output-path", place, ROOT], environment.env())
    tarballs = sorted(place.glob(f"{NAMESPACE}-{NAME}-*.tar.gz"))
    if len(tarballs) != 1:
        raise ToolError(f"expected one tarball in {place}, found {len(tarballs)}")
    with tarfile.open(tarballs[0]) as archive:
        strangers = {member.split("/")[0] for member in archive.getnames()} - PUBLISHED
    if strangers:
        raise ToolError(f"the tarball holds {', '.join(sorted(strangers))}: add to build_ignore in galaxy.yml what users do not need")
    return tarballs[0]


def install(environment: environments.Environment, tarball: Path, place: Path) -> dict[str, str]:
    """Install into an empty directory beside the dependencies; return the variables with which it is the only collection path."""
    # The only collection path: anywhere else, the checkout would pass for the installed collection.
    variables = {**environment.env(), "ANSIBLE_COLLECTIONS_PATH": str(place), "PYTHONPATH": ""}
    need([environment.tool("ansible-galaxy"), "collection", "install", "--offline", "--no-deps", "-p", place, tarball], variables)
    for name in WANTED:
        link = place / "ansible_collections" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(COLLECTIONS / "ansible_collections" / name)
    return variables


def check(environment: environments.Environment) -> int:
    """Build, install, read the documentation of every module, and check every playbook's syntax by its collection name."""
    place = BUILD / "package"
    shutil.rmtree(place, ignore_errors=True)
    variables = install(environment, build(environment, place), place / "installed")
    installed = place / "installed" / "ansible_collections" / NAMESPACE / NAME
    prefix = f"{NAMESPACE}.{NAME}"
    modules = [f"{prefix}.{path.stem}" for path in sorted((installed / "plugins" / "modules").glob("*.py"))]
    if not modules:
        raise ToolError("the tarball holds no module")
    need_quietly([environment.tool("ansible-doc"), "--type", "module", "--snippet", *modules], {**variables, "PAGER": "cat"}, place)
    playbooks = sorted((installed / "playbooks").glob("*.yml"))
    if not playbooks:
        raise ToolError("the tarball holds no playbook")
    for path in playbooks:
        need([environment.tool("ansible-playbook"), "--syntax-check", "-i", "localhost,", f"{prefix}.{path.stem}"], variables, place)
    say(f"{len(modules)} modules and {len(playbooks)} playbooks work from the installed tarball")
    return 0


def _run() -> int:
    return check(environments.development())


if __name__ == "__main__":
    main(_run)
