# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.filter.failure_text import FilterModule, failure_text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": "no"}, "no"),
        ({"msg": "non-zero return code", "stderr": " disk full\n"}, "non-zero return code\ndisk full"),
        ({"msg": "no", "stderr": "no"}, "no"),
        ({}, ""),
        ({"msg": None}, ""),
        ({"censored": "the output has been hidden", "failed": True}, "the output has been hidden"),
        (
            {"msg": "One or more items failed", "results": [{"msg": "fine"}, {"failed": True, "msg": "a: [Errno 28] No space left on device"}]},
            "a: [Errno 28] No space left on device",
        ),
        ({"msg": "All items completed", "results": [{"msg": "fine"}]}, "All items completed"),
        ({"msg": "no", "results": "of the module's own"}, "no"),
        ({"msg": "One", "results": [{"failed": True, "msg": f"{n}"} for n in range(7)]}, "0\n1\n2\n3\n4\n2 more items failed"),
        ({"msg": "One", "results": [{"failed": True, "msg": "same"}, {"unreachable": True, "msg": "same"}]}, "same"),
    ],
)
def test_what_a_failed_task_says(result: dict[str, Any], text: str) -> None:
    assert failure_text(result) == text


def test_it_wants_a_result() -> None:
    assert list(FilterModule().filters()) == ["failure_text"]
    with pytest.raises(AnsibleFilterError, match="needs the result"):
        failure_text("no")
