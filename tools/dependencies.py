# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fills .collections: the collections that ours depends on, and a link to the checkout itself.

They come out of the `ansible` package of tests/requirements/collections.txt, a wheel that holds the collections of one
release of the community: the same files as on Galaxy, from the index that pip already uses. It is kept in the cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

from tools.console import ToolError, main, need, say
from tools.places import COLLECTIONS, NAME, NAMESPACE, REQUIREMENTS, ROOT, cache_dir

WANTED = ("ansible/posix", "community/docker", "community/general", "community/library_inventory_filtering_v1")
PIN_FILE = REQUIREMENTS / "collections.txt"


def _pin() -> str:
    """The pinned requirement, like ansible==14.5.0."""
    found = re.search(r"^ansible==\S+$", PIN_FILE.read_text(), re.MULTILINE)
    if found is None:
        raise ToolError(f"{PIN_FILE} has no line like ansible==14.5.0")
    return found.group()


def _wheel(python: Path, pin: str) -> Path:
    """The wheel, downloaded once. Its own floor for Python does not matter: it is unpacked, not installed."""
    place = cache_dir() / "wheels"
    name = f"{pin.replace('==', '-')}-py3-none-any.whl"
    if not (place / name).is_file():
        place.mkdir(parents=True, exist_ok=True)
        say(f"downloading {pin} (51 MB), for the collections in it")
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            download: list[str | Path] = [python, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
            need([*download, "--python-version", "3.12", "--dest", scratch, pin])
            os.replace(Path(scratch) / name, place / name)
    return place / name


def _link_checkout(base: Path) -> None:
    """Let Ansible find the checkout as the collection that it is."""
    link = base / "ansible_collections" / NAMESPACE / NAME
    link.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(ROOT, link.parent)
    if not link.is_symlink() or os.readlink(link) != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def fill(python: Path, base: Path = COLLECTIONS) -> None:
    """Make `base` hold the pinned collections and the link to the checkout; nothing to do when it already does."""
    pin = _pin()
    stamp = hashlib.sha256("\n".join([pin, *WANTED]).encode()).hexdigest()
    stamp_file = base / "contents.sha256"
    if not (stamp_file.is_file() and stamp_file.read_text() == stamp):
        wheel = _wheel(python, pin)
        say(f"unpacking {', '.join(name.replace('/', '.') for name in WANTED)} into {base.relative_to(ROOT)}")
        for name in WANTED:
            shutil.rmtree(base / "ansible_collections" / name, ignore_errors=True)
        prefixes = tuple(f"ansible_collections/{name}/" for name in WANTED)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(base, [member for member in archive.namelist() if member.startswith(prefixes)])
        stamp_file.write_text(stamp)
    _link_checkout(base)


def _run() -> int:
    from tools import environments

    environments.development()
    say(f"{COLLECTIONS.relative_to(ROOT)} is ready")
    return 0


if __name__ == "__main__":
    main(_run)
