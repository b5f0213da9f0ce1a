# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import (
    SelectorError,
    parse_selector,
    parse_selectors,
    refuse_wide,
)

CONTAINER_ID = "677b51790c22be0044d0d17da968fc0c47d568307269f3b8e77fe7877e2a6522"


def entry(**changes: t.Any) -> dict[str, t.Any]:
    owner = {"kind": "process", "name": "python3", "id": None, "unit": None, "restarted_by": None}
    owner.update(changes.pop("owner", {}))
    return {"pid": 10, "name": "python3", "command": "/usr/bin/python3 serve.py", "user": "alice", "owner": owner, **changes}


@pytest.mark.parametrize(
    ("text", "process", "expected"),
    [
        ("unit:ollama.service", entry(owner={"kind": "unit", "name": "ollama.service", "unit": "ollama.service"}), True),
        ("unit:ollama", entry(owner={"kind": "unit", "name": "ollama.service", "unit": "ollama.service"}), True),
        ("unit:oll*", entry(owner={"kind": "user_unit", "name": "ollama.service", "unit": "ollama.service"}), True),
        ("unit:ollama-?", entry(owner={"kind": "unit", "name": "ollama-1.service", "unit": "ollama-1.service"}), True),
        ("unit:session*", entry(owner={"kind": "process", "unit": "session-1.scope"}), False),
        ("unit:vllm-embeddings", entry(owner={"kind": "container", "name": "vllm_embeddings", "unit": "vllm-embeddings.service"}), True),
        ("unit:python3", entry(), False),
        ("container:vllm_*", entry(owner={"kind": "container", "name": "vllm_embeddings", "id": CONTAINER_ID}), True),
        (f"container:{CONTAINER_ID[:12]}", entry(owner={"kind": "container", "name": "x", "id": CONTAINER_ID}), True),
        (f"container:{CONTAINER_ID[:11]}", entry(owner={"kind": "container", "name": "x", "id": CONTAINER_ID}), False),
        ("container:python3", entry(), False),
        ("process:python3", entry(), True),
        ("process:python", entry(), False),
        ("process:llama-server*", entry(name="main", command="/opt/llama.cpp/llama-server -m x"), True),
        ("process:llama-server", entry(name="main", exe="/opt/llama-server (deleted)"), True),
        ("process:VLLM::EngineCore", entry(name="VLLM::EngineCor", command=""), True),
        ("process:VLLM::EngineC*", entry(name="VLLM::EngineCor", command=""), True),
        ("process:serve.py", entry(), False),
        ("user:alice", entry(), True),
        ("user:bob", entry(), False),
        ("user:1000", entry(uid=1000), True),
    ],
)
def test_matches(text: str, process: dict[str, t.Any], expected: bool) -> None:
    assert parse_selector(text).matches(process) is expected


def test_a_cut_name_does_not_match_another_name_of_the_same_beginning() -> None:
    selector = parse_selector("process:llama-server-prod")
    assert not selector.matches(entry(name="llama-server-pr", command="/usr/bin/llama-server-preview"))
    assert selector.matches(entry(name="llama-server-pr", command="/usr/bin/llama-server-prod"))
    assert selector.matches(entry(name="llama-server-pr", command=""))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ollama", "known kind"),
        ("service:ollama", "known kind"),
        ("Unit:ollama", "known kind"),
        ("unit:", "names nothing"),
        ("unit:  ", "names nothing"),
        ("unit:user-1000.slice", "service"),
        ("unit:session-1.scope", "service"),
        ("unit:ollama.socket", "service"),
        ("process:/usr/bin/python3", "'/'"),
        ("process:a\nb", "printed"),
        ("process:a\0b", "printed"),
        ("process:" + "a" * 257, "longer"),
        (5, "must be text"),
        (None, "must be text"),
        ({"unit": "x"}, "must be text"),
    ],
)
def test_refused(text: object, words: str) -> None:
    with pytest.raises(SelectorError, match=words):
        parse_selector(text)


def test_refusals_never_show_what_cannot_be_printed() -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selector("\x1b[2Jbad")
    assert "\x1b" not in str(caught.value)


def test_list_keeps_order_and_drops_repetitions() -> None:
    found = parse_selectors(["unit:b", " unit:a.service ", "unit:b.service", "user:x"])
    assert [selector.text for selector in found] == ["unit:b", "unit:a.service", "user:x"]


@pytest.mark.parametrize(
    "text", ["process:*", "process:**", "process:?*", "unit:*", "unit:*.service", "container:[a-z]*", "process:[!x]*", "user:*", "process:-*"]
)
def test_wide_patterns_need_a_need(text: str) -> None:
    with pytest.raises(SelectorError, match="matches everything"):
        refuse_wide([parse_selector(text)], 0)
    refuse_wide([parse_selector(text)], 1)


@pytest.mark.parametrize("text", ["process:p*", "unit:*x.service", "container:[a-z]*1"])
def test_patterns_that_name_something_are_not_wide(text: str) -> None:
    refuse_wide([parse_selector(text)], 0)
