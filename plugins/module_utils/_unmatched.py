# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Selectors that nothing on a node matches: what they were to protect may go by another name.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import Selector
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import Systemd
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import matches_member

#: What ``systemctl is-enabled`` says of a unit that there is not.
_NO_UNIT = ("", "not-found")


def unmatched(scene: Scene, systemd: Systemd, selectors: t.Sequence[Selector]) -> list[str]:
    """Those of the selectors that nothing matches, as they were written. What cannot be looked into is not counted as empty."""
    return [selector.text for selector in selectors if not _matches(scene, systemd, selector)]


def _matches(scene: Scene, systemd: Systemd, selector: Selector) -> bool:
    if any(selector.matches(process) for process in scene.holders):
        return True
    if selector.kind == "unit":
        if any(selector.matches_unit(name) for unit in scene.units.values() for name in (unit.name, *unit.names)):
            return True
        # systemd has not loaded all that is installed.
        return not selector.is_glob and systemd.file_state(selector.pattern) not in _NO_UNIT
    if selector.kind == "container":
        return bool(scene.closed) or any(selector.matches_container(container.name, container.id) for container in scene.containers.values())
    return any(matches_member(selector, member) for member in scene.members.values())
