# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The controller's part of a module that takes long: starts it on the node, looks after it, and shows how far it is.

A copy takes minutes and a download hours, in which a module that is waited for shows nothing, and in which an idle ssh connection
may be cut. So the module runs on the node as Ansible's own asynchronous jobs do, and is asked every second or two, with a
connection that may break and come back.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
import time
import typing as t

from ansible import constants as C
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._copy_progress import Board, Share

display = Display()

#: The strategy loads this file before it forks; a worker's own standard output is never a terminal.
ON_TERMINAL = sys.stdout is not None and sys.stdout.isatty()
#: Seconds between two looks at the node.
POLL = 1.0
MOST_POLL = 2.5
#: Seconds between two questions whether the job has ended, while its progress says that it has not.
STATUS_EVERY = 20.0
#: Seconds without a connection after which the node is given up.
PATIENCE = 120.0
#: Seconds after which Ansible's wrapper on the node ends the job, whatever it does.
LIMIT = 7 * 24 * 3600


class FollowedJob(ActionBase):
    """Runs the module as a job of its own, unless there is nothing to wait for. The module has an option `progress`."""

    _supports_check_mode = True
    _supports_async = False

    #: Names the job's files, and what the lines say is done where.
    NAME = ""
    WORDS = ("copy", "to")

    def is_long(self, arguments: dict[str, t.Any]) -> bool:
        """Whether the module will take long with these arguments."""
        raise NotImplementedError

    def done_bytes(self, result: dict[str, t.Any]) -> t.Any:
        """What it has dealt with by the end, out of its result."""
        raise NotImplementedError

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Return the module's result."""
        result = super().run(tmp, task_vars)
        del tmp
        arguments = dict(self._task.args)
        if self._task.check_mode or not self.is_long(arguments) or self._connection.has_native_async:
            return {**result, **self._execute_module(module_args=arguments, task_vars=task_vars)}
        folder = str(self.get_shell_option("async_dir", default="~/.ansible_async"))
        progress = f"{folder}/unimem-{self.NAME}-{secrets.token_hex(8)}.progress"
        job = self._start({**arguments, "progress": progress}, task_vars)
        if job.get("failed") or "ansible_job_id" not in job:
            return {**result, **job}
        try:
            return {**result, **self._follow(job, progress, task_vars)}
        finally:
            self._clean(job, progress, task_vars)

    def host(self, task_vars: dict[str, t.Any]) -> str:
        """Whose job it is, for the line."""
        return str(task_vars.get("inventory_hostname", ""))

    def _start(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        # What the wrapper takes as its limit; 0 again afterwards, or Ansible would wait for the job itself.
        self._task.async_val = LIMIT
        try:
            started: dict[str, t.Any] = self._execute_module(module_args=arguments, task_vars=task_vars, wrap_async=True)
            return started
        finally:
            self._task.async_val = 0

    def _follow(self, job: dict[str, t.Any], progress: str, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        """Ask until the job has ended. Raises AnsibleConnectionFailure when the node cannot be reached for long."""
        # One for each task of this run: all hosts' workers have the same one in their hands.
        board = Board(os.path.join(C.DEFAULT_LOCAL_TMP, f"unimem-{self.NAME}-{self._task._uuid}"), ON_TERMINAL, words=self.WORDS)
        host = self.host(task_vars or {})
        last: Share | None = None
        asked = reached = time.monotonic()
        pause = POLL
        while True:
            time.sleep(pause)
            pause = min(MOST_POLL, pause * 1.2)
            try:
                told = self._progress(progress)
                now = time.monotonic()
                share = share_from(host, told)
                if share is not None:
                    last = share
                    self._show(board.tell(share))
                # It is not there yet, or not any more.
                if not told or now - asked >= STATUS_EVERY:
                    asked = now
                    status = self._status(job, task_vars)
                    if status.get("finished"):
                        break
                reached = now
            except AnsibleConnectionFailure:
                if time.monotonic() - reached > PATIENCE:
                    raise
        if not status.get("failed"):
            # A short job has ended before it was looked at; its log tells of it all the same.
            done = self.done_bytes(status)
            last = share_from(host, {"sent": done, "total": done, "seconds": status.get("seconds")}) or last
            if last is not None:
                self._show(board.tell(Share(host, last.total, last.total, last.seconds, finished=True)))
        elif last is not None:
            board.tell(Share(host, last.sent, last.total, last.seconds, finished=True))
        return {name: value for name, value in status.items() if name not in ("ansible_job_id", "results_file", "started", "finished")}

    def _progress(self, path: str) -> dict[str, t.Any]:
        """What the module wrote last; {} where it has written nothing yet, or has ended."""
        read = self._low_level_execute_command(f"cat -- {home_relative(path)}")
        try:
            told = json.loads(read["stdout"])
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}

    def _status(self, job: dict[str, t.Any], task_vars: dict[str, t.Any] | None, mode: str = "status") -> dict[str, t.Any]:
        arguments = {"jid": job["ansible_job_id"], "mode": mode, "_async_dir": os.path.dirname(job["results_file"])}
        status: dict[str, t.Any] = self._execute_module(module_name="ansible.legacy.async_status", module_args=arguments, task_vars=task_vars)
        return status

    def _clean(self, job: dict[str, t.Any], progress: str, task_vars: dict[str, t.Any] | None) -> None:
        try:
            self._status(job, task_vars, "cleanup")
            # For a module that was killed: otherwise it has removed it.
            self._low_level_execute_command(f"rm -f -- {home_relative(progress)} {home_relative(progress)}.new")
        except AnsibleConnectionFailure:
            display.vvv(f"{progress} may be left on the node: it cannot be reached")

    @staticmethod
    def _show(text: str | None) -> None:
        if text is not None:
            display.display(text)


def share_from(host: str, told: dict[str, t.Any]) -> Share | None:
    """What the module wrote, checked: it comes from another machine."""
    sent, total, seconds = told.get("sent"), told.get("total"), told.get("seconds")
    if isinstance(sent, bool) or isinstance(total, bool) or not isinstance(sent, int) or not isinstance(total, int):
        return None
    if not 0 <= sent <= total or not isinstance(seconds, (int, float)) or seconds < 0:
        return None
    return Share(host, sent, total, float(seconds), waiting=told.get("waiting") is True)


def home_relative(path: str) -> str:
    """A path for the node's shell, which knows what ~ is there."""
    return "~/" + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)
