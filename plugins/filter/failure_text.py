# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: failure_text
short_description: What a failed task says, out of its result
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - The message of a failed task, what a command said on its standard error, and for a task with a loop what its failed items say in place
    of the loop's own message.
  - For C(rescue), where the result is C(ansible_failed_result).
options:
  _input:
    description:
      - The result of the task.
    type: dict
    required: true
"""

EXAMPLES = r"""
---
- name: Do what may fail
  block:
    - name: Copy the files
      ansible.builtin.copy:
        src: "{{ item }}"
        dest: /srv/
        mode: '0644'
      loop:
        - one
        - two
  rescue:
    - name: Say why
      ansible.builtin.debug:
        msg: "{{ ansible_failed_result | unimem.dgx_spark.failure_text }}"
"""

RETURN = r"""
_value:
  description:
    - The texts, one a line; at most five items of a loop. Empty where there is none.
  type: str
  sample: "Could not write data to file: [Errno 28] No space left on device"
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _failure_text


def failure_text(result: Any) -> str:
    """Say what a failed task says; see DOCUMENTATION."""
    if not isinstance(result, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.failure_text needs the result of a task, a dictionary")
    return _failure_text.failure_text(result)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"failure_text": failure_text}
