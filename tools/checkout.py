# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of this checkout that are committed or would be, and a clean copy of them where a tool insists on its own place."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
from pathlib import Path

from tools.console import ToolError, need
from tools.places import NAME, NAMESPACE, ROOT


def files(root: Path = ROOT) -> list[str]:
    """Paths relative to `root`, of tracked files and of untracked ones that git does not ignore."""
    argv = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ToolError(f"cannot list the files of {root}: {done.stderr.strip() or 'git failed'}")
    return sorted({name for name in done.stdout.split("\0") if name and os.path.lexists(root / name)})


def _belongs_to_checkout(path: Path) -> bool:
    """False for what git and ansible-test keep in the copy."""
    return path.parts[0] != ".git" and path.parts[:2] != ("tests", "output")


def copy_below(base: Path, without: tuple[str, ...] = ()) -> Path:
    """Bring base/ansible_collections/unimem/dgx_spark in line with the checkout; what is unchanged keeps its time stamp.

    Folders in `without` (like "tests/lab/") are left out.

    The copy is a repository of its own: ansible-test asks git which files count, and around it lies one that ignores them all.
    """
    target = base / "ansible_collections" / NAMESPACE / NAME
    wanted = [name for name in files() if not name.startswith(without)]
    if not (target / ".git").is_dir():
        need(["git", "init", "--quiet", target])
    for name in wanted:
        source, copy = ROOT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.unlink(missing_ok=True)
            copy.symlink_to(os.readlink(source))
        elif copy.is_symlink() or not copy.is_file() or not filecmp.cmp(source, copy, shallow=False):
            copy.unlink(missing_ok=True)
            shutil.copy2(source, copy)
    keep = {target / name for name in wanted}
    for path in target.rglob("*"):
        if (path.is_symlink() or path.is_file()) and path not in keep and _belongs_to_checkout(path.relative_to(target)):
            path.unlink()
    unseen = set(wanted) - set(files(target))
    if unseen:
        raise ToolError(f"git in the copy {target} would not show {sorted(unseen)[0]} and {len(unseen) - 1} more: look at your global git ignore file")
    return target
