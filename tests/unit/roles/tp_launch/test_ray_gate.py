# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""When the engine may start over Ray: all nodes of this launch, and none besides."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[4] / "roles" / "tp_launch" / "files" / "ray_gate.py"
SPEC = importlib.util.spec_from_file_location("ray_gate", FILE)
assert SPEC is not None and SPEC.loader is not None
ray_gate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ray_gate)


def node(address: str, gpus: float = 1.0, alive: bool = True) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Alive": alive, "Resources": {"GPU": gpus, "CPU": 2.0}}


@pytest.mark.parametrize(
    ("nodes", "lacking", "foreign"),
    [
        ([], ["a", "b"], []),
        ([node("a"), node("b")], [], []),
        ([node("a"), node("b", 0.0)], ["b"], []),
        ([node("a"), node("b", alive=False)], ["b"], []),
        ([node("a"), node("b"), node("c")], [], ["c"]),
        ([node("a"), {"NodeManagerAddress": "b", "Alive": True}], ["b"], []),
    ],
)
def test_who_is_missing_and_who_is_not_of_this_launch(nodes: list[dict[str, Any]], lacking: list[str], foreign: list[str]) -> None:
    assert ray_gate.missing(nodes, 1.0, ["a", "b"]) == (lacking, foreign)


@pytest.mark.parametrize(("version", "can"), [("2.51.1", False), ("2.9.3", False), ("1.13.0", False), ("2.52.0", True), ("2.60.0", True), ("3.0.0.dev0", True)])
def test_which_ray_can_ask_for_a_token(version: str, can: bool) -> None:
    assert ray_gate.has_token_authentication(version) is can
