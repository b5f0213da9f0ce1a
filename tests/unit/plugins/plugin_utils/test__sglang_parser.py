# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""What SGLang's own parser makes of the command lines that are rendered for it, in the oldest and the newest version that they are for.

`make units` names the Pythons of both environments in UNIMEM_SGLANG, the oldest version first; without that these tests are skipped.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._engines import sglang
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import KV_CACHE_DTYPES, PlanError, engine_plan, refused_extras

PYTHONS = [Path(python) for python in os.environ.get("UNIMEM_SGLANG", "").split(os.pathsep) if python]
HERE = Path(__file__).resolve()
PROGRAMS = HERE.parents[4] / "roles" / "tp_launch" / "files"
AGES = ("oldest", "newest")

needs_parsers = pytest.mark.skipif(not PYTHONS, reason="UNIMEM_SGLANG names no Pythons with SGLang; `make units` does")


class Parser:
    """One version's parser, in a process of its own: nothing of SGLang is ever in this one."""

    def __init__(self, python: Path) -> None:
        program = HERE.with_name("sglang_parser.py")
        self._process = subprocess.Popen([python, "-I", "-B", program, PROGRAMS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        told = self._answer()
        self.version: str = told["version"]
        #: The name of each option, and where its value goes.
        self.options: dict[str, str] = {name: option["dest"] for option in told["options"] for name in option["names"]}

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "SGLang's parser has ended; why is said above"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, command: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
        """``read``: all that is not as it would be without any option; or ``refused``: why."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, "environment": environment or {}}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def read(self, *words: str) -> dict[str, Any]:
        """What these words are read as, with the one that it cannot be without."""
        answer = self.run(["python3", "-m", "sglang.launch_server", "--model-path", "/", *words])
        assert "refused" not in answer, answer["refused"]
        return dict(answer["read"])

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module", params=AGES)
def parser(request: pytest.FixtureRequest) -> Iterator[Parser]:
    assert len(PYTHONS) == len(AGES)
    found = Parser(PYTHONS[AGES.index(request.param)])
    yield found
    found.end()


def nodes(count: int) -> list[dict[str, Any]]:
    return [{"name": f"spark-{rank + 1:02}", "interface": "enp1s0f0np0", "address": f"192.168.100.{10 + rank}"} for rank in range(count)]


@dataclass(frozen=True)
class Case:
    """Settings of the role, and what SGLang has to read from them: on every node, and on the head alone."""

    name: str
    settings: dict[str, Any]
    meant: dict[str, Any]
    head: dict[str, Any]
    count: int = 2
    #: The version that can do it first, and what those before it say.
    since: tuple[int, ...] = ()
    says: str = ""


def case(name: str, settings: dict[str, Any], meant: dict[str, Any], head: dict[str, Any] | None = None, **more: Any) -> Case:
    return Case(name, settings, meant, head or {}, **more)


KEY, KEY_OF_HYPHENS = "s3cret", "-s3cret"
SPECULATIVE = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
CAN_BFLOAT16: dict[str, Any] = {"since": (0, 5, 4), "says": "argument --kv-cache-dtype: invalid choice: 'bfloat16'"}
CAN_LANGUAGE_MODEL_ONLY: dict[str, Any] = {"since": (0, 5, 18), "says": "unrecognized arguments: --language-model-only"}
TYPES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "auto": (None, {}),
    "bf16": ("bfloat16", CAN_BFLOAT16),
    "bfloat16": ("bfloat16", CAN_BFLOAT16),
    "fp8": ("fp8_e4m3", {}),
    "fp8_e4m3": ("fp8_e4m3", {}),
    "fp8_e5m2": ("fp8_e5m2", {}),
}
EVERYTHING: dict[str, Any] = {
    "expert_parallel": True,
    "context_length": 262144,
    "mem_fraction_static": 0.55,
    "kv_cache_dtype": "fp8",
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "prefix_caching": False,
    "eager": True,
    "speculative_tokens": 3,
    "port": 8080,
    "rendezvous_port": 29777,
    "api_key": KEY,
    "served_model_name": "a model",
    "extra_args": ["--json-model-override-args", {"rope": [1, 2]}, "--trust-remote-code"],
}
EVERYTHING_MEANT: dict[str, Any] = {
    "context_length": 262144,
    "mem_fraction_static": 0.55,
    "kv_cache_dtype": "fp8_e4m3",
    "max_running_requests": 16,
    "chunked_prefill_size": 2048,
    "disable_radix_cache": True,
    "disable_cuda_graph": True,
    **SPECULATIVE,
    "port": 8080,
    "served_model_name": "a model",
    "json_model_override_args": '{"rope": [1, 2]}',
    "trust_remote_code": True,
}
CASES = [
    case("nothing", {}, {}),
    case("pipeline", {"pipeline_parallel": 2}, {"tp_size": 1, "pp_size": 2}),
    case("experts", {"expert_parallel": True}, {"ep_size": 2}),
    case("two-gpus", {"gpus_per_node": 2}, {"tp_size": 4}),
    case("port", {"port": 8080}, {"port": 8080}),
    case("rendezvous", {"rendezvous_port": 29777}, {"dist_init_addr": "192.168.100.10:29777"}),
    case("bind", {"bind": "192.168.100.10"}, {}, {"host": "192.168.100.10"}),
    case("bind-6", {"bind": "::"}, {}, {"host": "::"}),
    case("name", {"served_model_name": "a model"}, {"served_model_name": "a model"}),
    case("snapshot", {"model_path": "/hub/models--a--b/snapshots/1"}, {"model_path": "/hub/models--a--b/snapshots/1", "served_model_name": "a/b"}),
    case("key", {"api_key": KEY}, {}, {"api_key": KEY}),
    case("key-of-hyphens", {"api_key": KEY_OF_HYPHENS}, {}, {"api_key": KEY_OF_HYPHENS}),
    case("context", {"context_length": 4096}, {"context_length": 4096}),
    case("fraction", {"mem_fraction_static": 0.6}, {"mem_fraction_static": 0.6}),
    *(case(f"cache-{given}", {"kv_cache_dtype": given}, {} if read is None else {"kv_cache_dtype": read}, **since) for given, (read, since) in TYPES.items()),
    case("sequences", {"max_num_seqs": 16}, {"max_running_requests": 16}),
    case("batch", {"max_num_batched_tokens": 2048}, {"chunked_prefill_size": 2048}),
    case("prefixes", {"prefix_caching": True}, {}),
    case("no-prefixes", {"prefix_caching": False}, {"disable_radix_cache": True}),
    case("language-only", {"language_model_only": True}, {"language_model_only": True}, **CAN_LANGUAGE_MODEL_ONLY),
    case("eager", {"eager": True}, {"disable_cuda_graph": True}),
    case("drafts", {"speculative_tokens": 3}, SPECULATIVE),
    case("extra", {"extra_args": ["--random-seed", 7]}, {"random_seed": 7}),
    *(case(f"plain-on-{count}", {}, {}, count=count) for count in (1, 4)),
    case("two-by-two", {"pipeline_parallel": 2}, {"tp_size": 2, "pp_size": 2}, count=4),
    case("everything-on-1", EVERYTHING, EVERYTHING_MEANT, {"api_key": KEY}, count=1),
    *(
        case(
            f"everything-on-{count}",
            EVERYTHING,
            {**EVERYTHING_MEANT, "ep_size": count, "dist_init_addr": "192.168.100.10:29777"},
            {"api_key": KEY},
            count=count,
        )
        for count in (2, 4)
    ),
    case(
        "everything-since",
        {**EVERYTHING, "language_model_only": True},
        {**EVERYTHING_MEANT, "ep_size": 2, "dist_init_addr": "192.168.100.10:29777", "language_model_only": True},
        {"api_key": KEY},
        **CAN_LANGUAGE_MODEL_ONLY,
    ),
]


def commands(chosen: Case) -> list[list[str]]:
    """What each rank of that group runs, the head first."""
    plan = engine_plan({"engine": "sglang", "model_path": "/models/m", **chosen.settings}, nodes(chosen.count))
    steps = [rank["file"]["steps"] for rank in plan["ranks"].values()]
    assert all([step["name"] for step in each] == ["engine"] for each in steps)
    return [list(each[0]["argv"]) for each in steps]


#: What is meant without being said, or said although it is meant anyway: the parser tells only what is different from this.
USUAL = {"tp_size": 1, "nnodes": 1, "node_rank": 0, "host": "127.0.0.1"}


def meant(chosen: Case, rank: int) -> dict[str, Any]:
    """What SGLang has to read on one rank."""
    values = {
        "model_path": "/models/m",
        "served_model_name": "m",
        "tp_size": chosen.count,
        "nnodes": chosen.count,
        "node_rank": rank,
        **({"dist_init_addr": "192.168.100.10:29501"} if chosen.count > 1 else {}),
        "host": "0.0.0.0" if rank == 0 else "127.0.0.1",
        "port": 8000,
        **chosen.meant,
        **(chosen.head if rank == 0 else {}),
    }
    return {name: value for name, value in values.items() if USUAL.get(name) != value}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


# --- what needs no parser ---


def test_every_option_that_can_be_rendered_has_a_case() -> None:
    """Of the engine's own options: those of which there are names in the function that renders them."""
    known = set(re.findall(r'"(--[a-z-]+)"', inspect.getsource(sglang.steps)))
    rendered = {word for chosen in CASES for command in commands(chosen) for word in command if word in known}
    assert rendered == known and len(known) > 20


def test_every_type_of_the_cache_has_a_case_or_is_refused() -> None:
    for name in KV_CACHE_DTYPES:
        if name not in TYPES:
            with pytest.raises(PlanError, match=f"SGLang has no KV cache of type {name}"):
                commands(case(name, {"kv_cache_dtype": name}, {}))


# --- what the parsers read ---


@needs_parsers
def test_both_ends_of_the_claimed_range_are_here() -> None:
    """What the engine's file says of itself, and what is installed to check it."""
    claimed = re.match(r"SGLang \(([0-9.]+) to ([0-9.]+);", str(sglang.__doc__))
    assert claimed is not None
    found = [Parser(python) for python in PYTHONS]
    for each in found:
        each.end()
    assert [each.version for each in found] == list(claimed.groups())


@needs_parsers
@pytest.mark.parametrize("chosen", CASES, ids=lambda chosen: chosen.name)
def test_every_rank_is_read_as_meant_and_as_nothing_else(chosen: Case, parser: Parser) -> None:
    for rank, command in enumerate(commands(chosen)):
        answer = parser.run(command, {sglang.API_KEY: chosen.settings.get("api_key", "")})
        if numbers(parser.version) < chosen.since:
            assert chosen.says in answer["refused"]
        else:
            assert answer == {"read": meant(chosen, rank)}, command


@needs_parsers
@pytest.mark.parametrize("key", [KEY, KEY_OF_HYPHENS, "--help", "a=b", "with a blank", "schl\u00fcssel"])
def test_the_key_is_the_heads_and_in_no_command_line(key: str, parser: Parser) -> None:
    for rank, command in enumerate(commands(case("key", {"api_key": key}, {}))):
        assert not any(key in word for word in command)
        assert parser.run(command, {sglang.API_KEY: key})["read"].get("api_key") == (key if rank == 0 else None)


# --- what a user's own words may not do ---

#: Where the values of the options go that the group's shape decides.
FIELDS = {
    "--api-key": "api_key",
    "--admin-api-key": "admin_api_key",
    "--dist-init-addr": "dist_init_addr",
    "--host": "host",
    "--model": "model_path",
    "--model-path": "model_path",
    "--nccl-init-addr": "dist_init_addr",
    "--nnodes": "nnodes",
    "--node-rank": "node_rank",
    "--port": "port",
    "--pp-size": "pp_size",
    "--pipeline-parallel-size": "pp_size",
    "--served-model-name": "served_model_name",
    "--tensor-parallel-size": "tp_size",
    "--tp": "tp_size",
    "--tp-size": "tp_size",
}
#: Those that not every version has: the first one.
SINCE = {"--admin-api-key": (0, 5, 8)}


def refuses(word: str) -> bool:
    return refused_extras({"engine": "sglang", "extra_args": [word, "7"]}) != []


def test_it_is_known_of_every_structural_option_what_it_is() -> None:
    assert set(FIELDS) == set(sglang.STRUCTURAL)


@needs_parsers
@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_structural_option_is_what_it_is_taken_for(name: str, parser: Parser) -> None:
    answer = parser.run(["python3", "-m", "sglang.launch_server", "--model-path", "/", name, "7"])
    if numbers(parser.version) < SINCE.get(name, ()):
        assert f"unrecognized arguments: {name}" in answer["refused"]
    else:
        assert {field: str(value) for field, value in answer["read"].items()} == {FIELDS[name]: "7"}


def structural(parser: Parser) -> set[str]:
    """Where the values of structural options go in the parser itself."""
    return {parser.options[name] for name in sglang.STRUCTURAL if name in parser.options}


@needs_parsers
def test_no_other_name_of_a_structural_option_is_forgotten(parser: Parser) -> None:
    same = {name for name, dest in parser.options.items() if dest in structural(parser)}
    assert same <= set(sglang.STRUCTURAL) and len(same) > 12


@needs_parsers
def test_no_beginning_of_a_structural_option_slips_through(parser: Parser) -> None:
    """The parser takes the beginning of a name for the whole where no other option begins so."""
    assert parser.read("--tens", "7") == {"tp_size": 7}
    beginnings = {name[:end] for name, dest in parser.options.items() if dest in structural(parser) for end in range(3, len(name) + 1)}
    taken = []
    for beginning in sorted(beginnings):
        fitting = {dest for name, dest in parser.options.items() if name.startswith(beginning)}
        if parser.options.get(beginning) in structural(parser) or (len(fitting) == 1 and fitting <= structural(parser)):
            taken.append(beginning)
            assert refuses(beginning) and refuses(f"{beginning}=7"), beginning
    assert {"--tens", "--tp", "--dist-in", "--nccl-i", "--nn", "--served", "--api"} <= set(taken)


@needs_parsers
def test_all_other_options_are_the_users(parser: Parser) -> None:
    assert [name for name, dest in parser.options.items() if dest not in structural(parser) and refuses(name)] == []
