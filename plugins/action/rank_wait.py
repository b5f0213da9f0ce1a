# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Waits for a rank and says meanwhile how far it is. The documentation is that of the module of the same name."""

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import PlanError
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._load_progress import look

display = Display()

#: Lines of the log in which the last stage is looked for.
LINES = 60
#: Part of the lease's time after which it is renewed: several renewals may fail before the node acts.
RENEW = 0.2
#: Seconds that a look may wait on the node: what happens meanwhile to the connection is noticed after it.
LONGEST = 60.0


class ActionModule(ActionBase):
    """See the module's DOCUMENTATION."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Look, say, wait, until there is nothing to wait for."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _checked, wanted = self.validate_argument_spec(
            argument_spec={
                "deployment": {"type": "str", "required": True},
                "launch_id": {"type": "str", "required": True},
                "engine": {"type": "str", "required": True},
                "timeout": {"type": "float", "default": 1800},
                "interval": {"type": "float", "default": 5},
                "lease": {"type": "dict", "default": {}},
                "patience": {"type": "float", "default": 60},
            }
        )
        host = str((task_vars or {}).get("inventory_hostname", ""))
        begin = seen = time.monotonic()
        renewed: float | None = None
        renew_after = float(wanted["lease"].get("ttl") or 0) * RENEW if wanted["lease"] else LONGEST
        said = ""
        while True:
            look_begin = time.monotonic()
            patient = min(wanted["interval"], max(0.0, begin + wanted["timeout"] - look_begin), renew_after, LONGEST)
            try:
                if wanted["lease"] and (renewed is None or look_begin - renewed >= renew_after):
                    kept = self._renew(wanted, task_vars)
                    if kept.get("failed"):
                        return {**result, **kept}
                    renewed = look_begin
                # It waits on the node and comes back at once with what decides. Between that the node's cores are the engine's.
                told = self._execute_module(
                    module_name="unimem.dgx_spark.rank_info",
                    module_args={"deployment": wanted["deployment"], "log_lines": LINES, "around": False, "timeout": 30, "wait": patient},
                    task_vars=task_vars,
                )
                if told.get("failed"):
                    return {**result, **told}
                state = look(told, wanted["launch_id"], wanted["engine"])
                seen = time.monotonic()
            except PlanError as error:
                raise AnsibleActionFail(f"engine: {error}") from error
            except AnsibleConnectionFailure as error:
                if time.monotonic() - seen > wanted["patience"]:
                    raise
                display.display(f"{host}: out of reach ({error}); its rank runs on meanwhile")
                time.sleep(patient)
                continue
            if state["words"] != said and state["words"]:
                said = state["words"]
                display.display(f"{host}: {said}")
            waited = time.monotonic() - begin
            if state["ready"] or state["ended"] or waited >= wanted["timeout"]:
                return {
                    **result,
                    "changed": False,
                    "ready": state["ready"],
                    "ended": state["ended"],
                    "status": state["status"],
                    "progress": state["progress"],
                    "transports": state["transports"],
                    "seconds": round(waited, 1),
                }
            # It has come back at once without anything that decides, as from a container engine that is being restarted.
            time.sleep(max(0.0, patient - (time.monotonic() - look_begin)))

    def _renew(self, wanted: dict[str, t.Any], task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        """Show the node that its run still lives; what the node says of it."""
        arguments = {"owner": wanted["lease"].get("owner"), "ttl": wanted["lease"].get("ttl"), "deployment": wanted["deployment"]}
        told: dict[str, t.Any] = self._execute_module(
            module_name="unimem.dgx_spark.node_lease",
            module_args={"state": "renewed", "launch_id": wanted["launch_id"], **arguments},
            task_vars=task_vars,
        )
        return told
