# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.filter.image_lacks import FilterModule

image_lacks = FilterModule().filters()["image_lacks"]


@pytest.mark.parametrize(
    ("wanted", "found", "said"),
    [
        ("", "1.0", []),
        ("", None, ["has no vllm"]),
        (">=0.20.1", None, ["has no vllm (>=0.20.1 is expected)"]),
        (">=0.20.1", "0.20.1", []),
        (">=0.20.1", "0.32.0+cpu", []),
        ("0.20.1", "0.9.2", ["has vllm 0.9.2, and >= 0.20.1 is expected"]),
        ("==2.60.0", "2.60.0", []),
        ("==2.60.0", "2.60.1", ["has vllm 2.60.1, and == 2.60.0 is expected"]),
        ("<0.30", "0.32.0", ["has vllm 0.32.0, and < 0.30 is expected"]),
        (">=1.2.3", "1.2.dev3", ["has vllm 1.2.dev3, and >= 1.2.3 is expected"]),
    ],
)
def test_packages(wanted: str, found: str | None, said: list[str]) -> None:
    assert image_lacks({"packages": {"vllm": found}}, {"vllm": wanted}) == said


def test_architecture_and_gpu_code() -> None:
    assert image_lacks({"packages": {}, "architecture_known": True, "gpu_code": ["sm_121"], "gpu_fits": True}, {}, "Foo", "12.1") == []
    lacks = image_lacks({"packages": {}, "architecture_known": False, "gpu_code": ["sm_80", "sm_90"], "gpu_fits": False}, {}, "Foo", "12.1")
    assert lacks == [
        "has an engine that does not know the model's architecture, Foo",
        "has GPU code for sm_80, sm_90, which does not run on compute capability 12.1",
    ]
    # What was not answered is not taken for a yes.
    lacks = image_lacks({"packages": {}, "architecture_known": None}, {}, "Foo", "12.1")
    assert "no engine (vllm, sglang)" in lacks[0] and "no GPU at all" in lacks[1]


@pytest.mark.parametrize("wanted", ["~=1", ">=", "latest", "1 2"])
def test_what_is_no_version_is_refused(wanted: str) -> None:
    with pytest.raises(AnsibleFilterError, match="is no version"):
        image_lacks({"packages": {"vllm": "1"}}, {"vllm": wanted})


@pytest.mark.parametrize("answer", [None, {}, {"packages": 3}, "x"])
def test_what_is_no_answer_is_refused(answer: object) -> None:
    with pytest.raises(AnsibleFilterError, match="answer of a probe"):
        image_lacks(answer)
