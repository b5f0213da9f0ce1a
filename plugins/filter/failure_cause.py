# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: failure_cause
short_description: Find the line of an engine's log that says why it ended
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Looks for messages of vLLM, SGLang, Ray, NCCL, CUDA, Docker, rsync and ssh that are known. The earliest line that tells of a failure of its own is taken,
    else the earliest that can as well be what another rank's failure looks like from here, since the last lines of a log are only what followed from it.
  - For the logs of several nodes at once, P(unimem.dgx_spark.diagnosis#filter) also knows how the ranks ended and how far apart their clocks are.
options:
  _input:
    description:
      - The lines of the log, each with its time stamp before it, as C(docker logs --timestamps) prints them.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
---
- name: Say why the rank ended
  ansible.builtin.debug:
    msg: "{{ log.stdout_lines | unimem.dgx_spark.failure_cause }}"
"""

RETURN = r"""
_value:
  description:
    - The class (such as memory, network, image, model, port, driver or timeout) and the line, or an empty text where no known message is found.
  type: str
  sample: 'memory: torch.AcceleratorError: CUDA error: out of memory'
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _diagnosis


def failure_cause(lines: Any) -> str:
    """Find the line that says why an engine ended; see DOCUMENTATION."""
    if not isinstance(lines, (list, tuple)):
        raise AnsibleFilterError("unimem.dgx_spark.failure_cause needs a list of lines")
    return _diagnosis.cause_of_lines([str(line) for line in lines])


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"failure_cause": failure_cause}
