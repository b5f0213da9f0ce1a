# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's part of M(unimem.dgx_spark.model_push)."""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._followed_job import FollowedJob


class ActionModule(FollowedJob):
    """Runs the copy as a job of its own, unless there is nothing to send."""

    NAME = "model-push"

    def is_long(self, arguments: dict[str, t.Any]) -> bool:
        return bool(arguments.get("files"))

    def done_bytes(self, result: dict[str, t.Any]) -> t.Any:
        return result.get("sent_bytes")
