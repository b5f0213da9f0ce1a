# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Waiting beside a rank for what decides: the group is ready, or the rank has ended. The container engine tells both by itself, so nothing
is asked again and again on a node whose cores the engine needs for its start.
"""

from __future__ import annotations

import time
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_info import log_lines
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_log import parse_stamp, says_ready
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import DEPLOYMENT_LABEL

#: Seconds for a container whose log has ended to have ended itself.
_END = 2.0
#: Lines that are there already and looked through: what was written since the last look. More than that may be ready some seconds before it is seen.
_LINES = 500


class Engine(t.Protocol):
    """What is asked of the container engine; EngineError when it does not answer."""

    def describe_labelled(self, label: str) -> list[dict[str, t.Any]]: ...

    def read_log(self, container_id: str, seconds: float, since: int = 0, follow: int | None = None) -> t.Iterator[bytes]: ...

    def wait(self, container_id: str, seconds: float) -> None: ...


def wait_for_news(engine: Engine, deployment: str, seconds: float, clock: t.Callable[[], float] = time.monotonic) -> None:
    """Come back when a rank of the deployment on this node is ready or no longer runs, at the latest after so many seconds.

    It comes back at once where no rank runs, and where the engine does not answer: what there is, is read afterwards in any case.
    """
    end = clock() + seconds
    try:
        running = [told for told in engine.describe_labelled(f"{DEPLOYMENT_LABEL}={deployment}") if (told.get("State") or {}).get("Running")]
        if len(running) != 1:
            return  # none, or ranks of several launches: who looks has to say something of that
        (told,) = running
        container = str(told.get("Id"))
        # Not what an earlier start of the same container said.
        started = int(parse_stamp(str((told.get("State") or {}).get("StartedAt"))) or 0)
        try:
            for line in log_lines(told, engine.read_log(container, max(0.1, end - clock()), max(0, started), _LINES)):
                if says_ready(line):
                    return
        except EngineError as error:
            if error.code != "failed":
                raise
            # A log that cannot be read, as with the log driver none: the end is still told.
            engine.wait(container, end - clock())
            return
        engine.wait(container, min(_END, end - clock()))
    except EngineError:
        return
