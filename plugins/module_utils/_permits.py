# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The entry of ``service_eviction_services`` that would permit stopping a thing. Pure: a Scene in, a Permit out.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import glob
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import protected_unit
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import Unit


class Permit(t.NamedTuple):
    """One such entry. What cannot be put back needs ``never``, and is not stopped with another value."""

    selector: str
    restore: str = "on_failure"
    policy: str = "if_needed"

    @property
    def line(self) -> str:
        """The line of an inventory."""
        quoted = self.selector.replace("'", "''")
        return f"- {{selector: '{quoted}', policy: {self.policy}, restore: {self.restore}}}"


def permit_unit(scene: Scene, unit: Unit) -> Permit:
    """The entry for a unit, with all that it runs."""
    made = scene.makes.get(unit.key, [])
    inner = [scene.containers[key] for key in scene.wraps.get(unit.key, []) if key in scene.containers]
    lost = unit.transient or any(container.auto_remove and container.key not in made for container in inner)
    return Permit(f"unit:{unit.name}", "never" if lost else "on_failure")


def permit_container(container: Container) -> Permit:
    """The entry for a container that no unit runs."""
    return Permit(f"container:{container.name}", "never" if container.auto_remove else "on_failure")


def permit_process(name: str) -> Permit:
    """The entry for a process that belongs to neither. A pattern has no slash, and brackets mean something in it."""
    return Permit(f"process:{glob.escape(name).replace('/', '?')}", "never")


def permit_of(scene: Scene, process: t.Mapping[str, t.Any]) -> Permit | None:
    """The entry that would have to be listed for a process of the driver's list; None where nothing would permit it."""
    if process.get("protected"):
        return None
    member = scene.members.get(process["pid"])
    if member is None or member.protected or member.runtime in ("kubernetes", "crio"):
        return None
    container = scene.containers.get(member.container or "")
    if container is not None:
        wrapper = next(iter(scene.wrappers(container.key)), None)
        return permit_unit(scene, scene.units[wrapper]) if wrapper else permit_container(container)
    if member.container is not None:
        return None
    unit = scene.units.get(member.unit or "")
    if unit is not None:
        return None if protected_unit(unit.name) else permit_unit(scene, unit)
    return permit_process(member.name)
