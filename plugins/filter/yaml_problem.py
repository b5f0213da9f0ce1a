# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: yaml_problem
short_description: Say where a text stops being YAML
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Reads a text as one YAML document and says in which line it is none, and why. Nothing in it is made into objects, so that tags of any kind will do.
positional: _input
options:
  _input:
    description:
      - The text.
    type: str
    required: true
"""

EXAMPLES = r"""
---
- name: Say what is wrong with a file of variables
  ansible.builtin.debug:
    msg: "{{ lookup('ansible.builtin.file', 'model.yml') | unimem.dgx_spark.yaml_problem }}"
"""

RETURN = r"""
_value:
  description:
    - The line, the column and the problem. Empty when it is YAML.
  type: str
  sample: "line 5, column 16: expected ',' or ']', but got ':' (while parsing a flow sequence that begins in line 4)"
"""

from collections.abc import Callable
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError


def yaml_problem(text: Any) -> str:
    """Say where it stops being YAML; see DOCUMENTATION."""
    if not isinstance(text, str):
        raise AnsibleFilterError(f"unimem.dgx_spark.yaml_problem needs a text, not {type(text).__name__}")
    try:
        yaml.compose(str(text), Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as exc:
        code = ord(text[exc.position])
        # What a byte that is no UTF-8 is read as.
        what = "a byte that is no UTF-8" if 0xDC80 <= code <= 0xDCFF else f"a character that YAML does not allow, {code:#06x}"
        line = text.count("\n", 0, exc.position) + 1
        return f"line {line}: {what}"
    except yaml.MarkedYAMLError as exc:
        return _said(exc)
    return ""


def _said(exc: yaml.MarkedYAMLError) -> str:
    """The place and the problem; what was being read there has often begun in another line, the one to mend."""
    place, start = exc.problem_mark or exc.context_mark, exc.context_mark
    said = f"line {place.line + 1}, column {place.column + 1}: " if place is not None else ""
    said += exc.problem or exc.context or "no YAML"
    if exc.problem and exc.context:
        begun = f" that begins in line {start.line + 1}" if start is not None and place is not None and start.line != place.line else ""
        said += f" ({exc.context}{begun})"
    return said


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"yaml_problem": yaml_problem}
