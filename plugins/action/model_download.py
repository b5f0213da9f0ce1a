# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's part of M(unimem.dgx_spark.model_download)."""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._followed_job import FollowedJob


class ActionModule(FollowedJob):
    """Runs the download as a job of its own; to look at the disk needs none."""

    NAME = "model-download"
    WORDS = ("download", "on")

    def is_long(self, arguments: dict[str, t.Any]) -> bool:
        return arguments.get("state") == "downloaded"

    def done_bytes(self, result: dict[str, t.Any]) -> t.Any:
        return result.get("downloaded_bytes")

    def host(self, task_vars: dict[str, t.Any]) -> str:
        # Once for all hosts, on the one that has the model.
        return str(self._task.delegate_to or task_vars.get("inventory_hostname", ""))
