# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the lab keeps its files on the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
CHECKOUT = SOURCE.parent.parent


@dataclass(frozen=True)
class Paths:
    """``state``: keys, disks and logs of this checkout's lab. ``cache``: what every checkout on the machine can reuse."""

    state: Path
    cache: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Paths:
        """LAB_DIR (default ``.lab`` in the checkout) and LAB_CACHE (default /var/cache/unimem-lab)."""
        return cls(
            state=Path(environment.get("LAB_DIR") or CHECKOUT / ".lab").resolve(),
            cache=Path(environment.get("LAB_CACHE") or "/var/cache/unimem-lab").resolve(),
        )

    @property
    def keys(self) -> Path:
        return self.state / "ssh"

    @property
    def ssh_config(self) -> Path:
        return self.state / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.state / "known_hosts"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    def disk(self, host: str) -> Path:
        return self.state / "hosts" / host
