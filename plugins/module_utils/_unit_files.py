# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Unit files of ours that the next boot starts: a file and a link in systemd's directory, and no word to systemd itself.

systemd is not made to reload its configuration, which can take the GPU away from containers that run (NVIDIA/nvidia-docker#1730).
"""

from __future__ import annotations

import contextlib
import os

#: Where an administrator's units are.
UNIT_DIRECTORY = "/etc/systemd/system"

_WANTS = "multi-user.target.wants"


def quoted(word: str) -> str:
    """A word as unit files want it: systemd's own characters doubled, the word in quotes."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"'


def unit_paths(directory: str, name: str) -> tuple[str, str]:
    """The link by which a boot starts a unit, and its file: in the order in which they are removed."""
    return os.path.join(directory, _WANTS, name), os.path.join(directory, name)


def write_unit(directory: str, name: str, text: str) -> None:
    """The file as a whole, synced, and the link. What lies there under that name is replaced, and not followed. Raises OSError."""
    link, path = unit_paths(directory, name)
    beside = f"{path}.new"
    os.makedirs(os.path.dirname(link), mode=0o755, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(beside, path)
    with contextlib.suppress(FileExistsError):
        os.symlink(f"../{name}", link)
    for changed in (directory, os.path.dirname(link)):
        _sync_directory(changed)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
