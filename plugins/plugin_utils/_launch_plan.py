# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""From a launch's settings and the nodes' fabric to what each rank's container runs: pure, the same every time.

The result's ``spec`` is a hash of all that makes the group what it is. It is the containers' label, and the only thing
compared when a group is found running: a container engine's own normalised values never are.
"""

from __future__ import annotations

import hashlib
import importlib
import ipaddress
import json
import pkgutil
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import DEPLOYMENT_PATTERN, container_name
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import SizeError, parse_size
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _engines
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._engines._base import (
    CACHE,
    NCCL_TELLS,
    READY_TIMEOUT,
    Engine,
    Node,
    PlanError,
    Settings,
    rdma_everywhere,
)

__all__ = ["PlanError", "engine_names", "engine_plan", "find_engine", "kv_pool", "model_mount", "model_name", "refused_extras"]

KV_CACHE_DTYPES = ("auto", "bf16", "bfloat16", "fp16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
#: What the ranks recognise each other by (rank_supervisor.py).
GROUP_TOKEN = "UNIMEM_GROUP_TOKEN"
READY_FILE = "/tmp/unimem/ready"  # inside the container


def engines() -> dict[str, Engine]:
    """Every engine's file of ``_engines``, by all of its names."""
    found: dict[str, Engine] = {}
    for entry in sorted(pkgutil.iter_modules(_engines.__path__), key=lambda item: item.name):
        if not entry.name.startswith("_"):
            engine: Any = importlib.import_module(f"{_engines.__name__}.{entry.name}")
            for name in engine.NAMES:
                found[name] = engine
    return found


def engine_names() -> list[str]:
    """All names that may be given."""
    return sorted(engines())


def find_engine(name: Any) -> Engine:
    """The engine of that name; PlanError names the ones there are."""
    known = engines()
    if str(name) not in known:
        raise PlanError(f"there is no engine '{name}'; known are {', '.join(sorted(known))}")
    return known[str(name)]


def model_name(path: str) -> str:
    """What a model is called in the API when nobody says: the repository of a Hugging Face cache, else the directory's name."""
    for part in reversed(str(path).rstrip("/").split("/")):
        if part.startswith("models--"):
            return part[len("models--") :].replace("--", "/")
    return str(path).rstrip("/").rsplit("/", 1)[-1]


def model_mount(path: str) -> str:
    """The directory to mount so that the model's links resolve in the container.

    A snapshot holds links to ``../../blobs``, and current caches link on to blobs shared by all repositories, so the
    whole cache is mounted; a plain directory is mounted as it is.
    """
    parts = str(path).rstrip("/").split("/")
    for index, part in enumerate(parts):
        if part.startswith("models--") and index > 1:
            return "/".join(parts[:index])
    return "/".join(parts) or "/"


class _Reader:
    """Takes values out of the settings one by one, and collects what is wrong with them."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self.problems: list[str] = []

    def _value(self, name: str) -> Any:
        value = self._raw.get(name)
        # An empty text is how a template says "nothing"; passed on, an engine would read it as something.
        return None if value is None or (isinstance(value, str) and not value.strip()) else value

    def text(self, name: str, default: str = "", choices: Sequence[str] = (), pattern: str = "") -> str:
        value = self._value(name)
        text = default if value is None else str(value)
        if choices and text not in choices:
            self.problems.append(f"{name} is '{text}', not one of {', '.join(choices)}")
        elif pattern and not re.fullmatch(pattern, text):
            self.problems.append(f"{name} is '{text}', which is not of the form {pattern}")
        return text

    def number(self, name: str, default: int | None = None, low: int = 0, high: int = 2**62) -> int | None:
        value = self._value(name)
        if value is None:
            return default
        try:
            number = int(value) if not isinstance(value, float) or value.is_integer() else None
        except (TypeError, ValueError):
            number = None
        if number is None or isinstance(value, bool) or not low <= number <= high:
            self.problems.append(f"{name} is '{value}', not a whole number from {low} to {high}")
            return default
        return number

    def integer(self, name: str, default: int, low: int = 0, high: int = 2**62) -> int:
        number = self.number(name, default, low, high)
        return default if number is None else number

    def size(self, name: str, default: int | None = None, low: int = 1) -> int | None:
        value = self._value(name)
        if value is None:
            return default
        try:
            size = parse_size(value, name)
        except SizeError as exc:
            self.problems.append(str(exc))
            return default
        if size < low:
            self.problems.append(f"{name} is {size} bytes, less than {low}")
        return size

    def fraction(self, name: str) -> float | None:
        value = self._value(name)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = 0.0
        if isinstance(value, bool) or not 0.0 < number <= 1.0:
            self.problems.append(f"{name} is '{value}', not a number above 0 and up to 1")
            return None
        return number

    def flag(self, name: str, default: bool | None) -> bool | None:
        value = self._value(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        known = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
        if str(value).lower() in known:
            return known[str(value).lower()]
        self.problems.append(f"{name} is '{value}', neither true nor false")
        return default

    def words(self, name: str) -> tuple[str, ...]:
        value = self._value(name)
        if value is None:
            return ()
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            self.problems.append(f"{name} must be a list with one word of the command line an entry, like ['--seed', '7']")
            return ()
        words = []
        for word in value:
            # Numbers in YAML become words, and a dictionary becomes the JSON that engines read; nothing is ever split at blanks.
            if isinstance(word, (Mapping, list, tuple)):
                words.append(json.dumps(_plain(word)))
            elif word is None or isinstance(word, bool):
                self.problems.append(f"{name} has {json.dumps(word)}, which is no word; put it in quotes if the engine wants it so")
            else:
                words.append(str(word))
        return tuple(words)

    def variables(self, name: str, reserved: Sequence[str] = ()) -> dict[str, str]:
        value = self._value(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problems.append(f"{name} must be a dictionary of environment variables")
            return {}
        for key, entry in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(key)):
                self.problems.append(f"{name} has '{key}', which is no name of an environment variable")
            elif str(key) in reserved:
                self.problems.append(f"{name} has {key}, which the role sets itself; a key of the API belongs in api_key, which keeps it secret")
            elif not isinstance(entry, (str, int, float)) or isinstance(entry, bool):
                self.problems.append(f"{name} has no text for {key}; put its value in quotes")
        return {str(key): str(entry) for key, entry in value.items()}


def _structural(word: str, options: Sequence[str]) -> str | None:
    """The option of ``options`` that an engine's parser takes a word for, or None.

    Both engines' parsers accept an unambiguous beginning of a name, and a one-letter option with its value attached;
    vLLM's also takes underscores for hyphens.
    """
    name = word.split("=", 1)[0]
    if name.startswith("--"):
        name = name.replace("_", "-")
        return next((option for option in sorted(options, key=len) if len(name) > 2 and option.startswith(name)), None)
    return next((option for option in options if name == option or (len(option) == 2 and name.startswith(option))), None)


def _extras(reader: _Reader, engine: Engine) -> tuple[tuple[str, ...], dict[str, str]]:
    """The user's own words and variables for the engine; what the role sets itself is refused."""
    words = reader.words("extra_args")
    for word in words:
        option = _structural(word, engine.STRUCTURAL)
        if option is not None:
            hint = "the variable for the API key, which keeps it out of every command line" if "api-key" in option else "the variable for it"
            reader.problems.append(f"extra_args has {option}, which the role sets itself; use {hint}")
    return words, reader.variables("env", (engine.API_KEY, *engine.GROUP_SECRETS, "UNIMEM_LAUNCH_ID", GROUP_TOKEN))


def refused_extras(raw: Mapping[str, Any], hosts: Sequence[str] = ()) -> list[str]:
    """What ``engine_plan`` would refuse before anybody has looked at a node: of ``extra_args`` and ``env``, or of all settings of a group of ``hosts``."""
    try:
        engine = find_engine(raw.get("engine"))
        if not hosts:
            reader = _Reader(raw)
            _extras(reader, engine)
            return reader.problems
        # No engine's check reads what is found out on a node.
        return _settings(raw, engine, [Node(name=str(host), rank=rank, interface="", address="") for rank, host in enumerate(hosts)])[2]
    except PlanError as exc:
        return [str(exc)]


def _address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _settings(raw: Mapping[str, Any], engine: Engine, nodes: Sequence[Node]) -> tuple[Settings, str, list[str]]:
    """The settings, the deployment's name, and all that is wrong with them."""
    reader = _Reader(raw)
    gpus = reader.integer("gpus_per_node", 1, 1, 16)
    pipeline = reader.integer("pipeline_parallel", 1, 1, 1024)
    tensor = reader.integer("tensor_parallel", max(1, len(nodes) * gpus // pipeline), 1, 1024)
    path = reader.text("model_path")
    if not re.fullmatch(r"/+[^/].*", path):
        reader.problems.append(f"model_path is '{path}', not the absolute path of a model's directory")
    extra_args, env = _extras(reader, engine)
    settings = Settings(
        engine=engine.NAMES[0],
        model_path=path.rstrip("/"),
        served_model_name=reader.text("served_model_name", model_name(path)),
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        expert_parallel=bool(reader.flag("expert_parallel", False)),
        gpus_per_node=gpus,
        port=reader.integer("port", 8000, 1, 65535),
        bind=reader.text("bind", "0.0.0.0"),
        ray_port=reader.integer("ray_port", 6379, 1, 65535),
        rendezvous_port=reader.integer("rendezvous_port", 29501, 1, 65535),
        control_port=reader.integer("control_port", 29400, 1, 65535),
        has_api_key=bool(raw.get("api_key")),
        context_length=reader.number("context_length", None, 1),
        kv_cache_dtype=reader.text("kv_cache_dtype", "auto", KV_CACHE_DTYPES),
        gpu_memory_utilization=reader.fraction("gpu_memory_utilization"),
        mem_fraction_static=reader.fraction("mem_fraction_static"),
        kv_cache_memory=reader.size("kv_cache_memory"),
        max_num_seqs=reader.number("max_num_seqs", None, 1),
        max_num_batched_tokens=reader.number("max_num_batched_tokens", None, 1),
        speculative_tokens=reader.integer("speculative_tokens", 0, 0, 64),
        prefix_caching=reader.flag("prefix_caching", None),
        language_model_only=bool(reader.flag("language_model_only", False)),
        eager=bool(reader.flag("eager", False)),
        extra_args=extra_args,
        env=env,
        ray_object_store_memory=reader.size("ray_object_store_memory", 1024**3, 80 * 1024**2) or 1024**3,
        start_timeout=reader.integer("start_timeout", 1800, 1),
        join_timeout=reader.integer("join_timeout", 300, 1),
        shm_size=reader.size("shm_size", 10 * 1024**3) or 0,
        stop_grace=reader.integer("stop_grace", 30, 1),
        cache_directory=reader.text("cache_directory", pattern=r"(/[^/\0]+)+/?|"),
    )
    deployment = reader.text("deployment", "default", pattern=DEPLOYMENT_PATTERN)
    problems = reader.problems
    if not _address(settings.bind):
        problems.append(f"bind is '{settings.bind}', not an address of the head (0.0.0.0 for all of them)")
    world = settings.tensor_parallel * settings.pipeline_parallel
    if world != len(nodes) * gpus:
        problems.append(
            f"tensor_parallel {settings.tensor_parallel} x pipeline_parallel {settings.pipeline_parallel} needs {world} GPUs, "
            f"but the play has {len(nodes)} node(s) with {gpus} each ({', '.join(node.name for node in nodes)}); was it limited?"
        )
    ports = (settings.port, settings.ray_port, settings.rendezvous_port, settings.control_port)
    if len(set(ports)) < len(ports):
        problems.append(f"port, ray_port, rendezvous_port and control_port must be four different ones, not {', '.join(map(str, ports))}")
    problems += engine.check(settings, nodes)
    return settings, deployment, problems


def _node(rank: int, raw: Mapping[str, Any]) -> Node:
    try:
        node = Node(
            name=str(raw["name"]),
            rank=rank,
            interface=str(raw["interface"]),
            address=str(raw["address"]),
            rdma_devices=tuple(str(name) for name in raw.get("rdma_devices") or ()),
            rdma_character_devices=tuple(str(name) for name in raw.get("rdma_character_devices") or ()),
            mtu=raw.get("mtu"),
        )
    except KeyError as exc:
        raise PlanError(f"a node of the group lacks {exc}: give what unimem.dgx_spark.fabric_of returned, and its name") from exc
    if not _address(node.address):
        raise PlanError(f"{node.name} has the fabric address '{node.address}', which is no address")
    if not re.fullmatch(r"[^\s/:,]{1,15}", node.interface):
        raise PlanError(f"{node.name} has the fabric interface '{node.interface}', which is no name of an interface")
    return node


def _plain(value: Any) -> Any:
    """With plain types only: what a hash can be taken of."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _lasting(rank: Mapping[str, Any]) -> dict[str, Any]:
    """A rank without what matters only while the group starts or stops."""
    file = {key: value for key, value in rank["file"].items() if key not in ("start_timeout", "join_timeout", "grace")}
    steps = [{key: value for key, value in step.items() if key != "timeout"} for step in rank["file"]["steps"]]
    environment = {key: value for key, value in rank["environment"].items() if key != READY_TIMEOUT}
    return {**rank, "environment": environment, "file": {**file, "steps": steps}}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _environment(own: Mapping[str, str], users: Mapping[str, str]) -> dict[str, str]:
    """A rank's environment: the user's own variables win, and who says what NCCL shall tell decides all of it."""
    kept = own
    if any(name in users for name in NCCL_TELLS):
        kept = {name: value for name, value in own.items() if name not in NCCL_TELLS}
    return {**kept, **users}


def _wants_rdma(users: Mapping[str, str]) -> bool:
    """Whether the user leaves the transport to NCCL; its own words for yes are 1, y and true."""
    return "NCCL_NET" not in users and users.get("NCCL_IB_DISABLE", "0").strip().lower() in ("", "0", "n", "no", "false")


def engine_plan(settings: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], container: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What each rank of a group runs.

    ``settings``: the role's variables without their prefix. ``nodes``: the head first; for each its name and what
    ``fabric_of`` returned for it. ``container``: whatever else makes the containers what they are (image, limits, programs), for the hash.
    Returns ``engine``, ``deployment``, ``world``, ``spec``, ``served_model_name``, ``model_path``, ``model_mount``, ``endpoint``, ``local_url``,
    ``api_key_variable``, ``group_secret_variables``, ``pool_path``, ``rdma`` (whether NCCL is expected to use it),
    ``cache_mount`` (where the host's directory for compiled kernels is mounted, or None), ``shm_bytes``, ``stop_timeout``, and ``ranks``: for each node's name
    ``rank``, ``role``, ``container``, ``address``, ``environment``, ``devices``, ``ports``, ``file`` (what the rank's program reads) and ``fabric`` (the
    node as it was given).
    The values of the API key and of the group's secret are in none of them.
    Raises PlanError with all that is wrong with the settings.
    """
    if not nodes:
        raise PlanError("the group has no node")
    members = [_node(rank, raw) for rank, raw in enumerate(nodes)]
    if len({member.name for member in members}) != len(members):
        raise PlanError("a node is in the group twice")
    if len({member.address for member in members}) != len(members):
        raise PlanError("two nodes have the same fabric address: " + ", ".join(f"{member.name} {member.address}" for member in members))
    engine = find_engine(settings.get("engine"))
    wanted, deployment, problems = _settings(settings, engine, members)
    if problems:
        raise PlanError("; ".join(problems))
    head = members[0]
    ranks: dict[str, dict[str, Any]] = {}
    for member in members:
        ranks[member.name] = {
            "rank": member.rank,
            "role": member.role,
            "container": container_name(deployment, member.rank),
            "address": member.address,
            "environment": _environment(engine.environment(wanted, members, member), wanted.env),
            "devices": ["/dev/infiniband"] if member.rdma else [],
            "ports": {str(port): purpose for port, purpose in engine.ports(wanted, members, member).items()},
            "file": {
                "rank": member.rank,
                "world": len(members),
                "role": f"{member.role} {member.name}",
                "control": {"address": head.address, "port": wanted.control_port},
                "steps": engine.steps(wanted, members, member),
                "ready": {"url": engine.ready_url(wanted)},
                "ready_file": READY_FILE,
                "start_timeout": wanted.start_timeout,
                "join_timeout": wanted.join_timeout,
                "grace": wanted.stop_grace,
                "secrets": [engine.API_KEY, *engine.GROUP_SECRETS],
            },
        }
    local = engine.ready_url(wanted).rsplit("/", 1)[0]
    shown = head.address if wanted.bind in ("0.0.0.0", "::") else wanted.bind
    endpoint = f"http://{'[' + shown + ']' if ':' in shown else shown}:{wanted.port}/v1"
    identity = {
        "deployment": deployment,
        "shm_bytes": wanted.shm_size,
        "engine": wanted.engine,
        "ranks": {name: _lasting(rank) for name, rank in ranks.items()},
        "container": container or {},
        "key": _key(settings, deployment),
    }
    return {
        "engine": wanted.engine,
        "deployment": deployment,
        "world": len(members),
        "spec": _digest(_plain(identity))[:32],
        "served_model_name": wanted.served_model_name,
        "model_path": wanted.model_path,
        "model_mount": model_mount(wanted.model_path),
        "endpoint": endpoint,
        "local_url": local,
        "group_secret_variables": [GROUP_TOKEN, *engine.GROUP_SECRETS],
        "api_key_variable": engine.API_KEY if wanted.has_api_key else None,
        "pool_path": engine.pool_path(),
        "cache_mount": CACHE if wanted.cache_directory else None,
        "rdma": rdma_everywhere(members) and _wants_rdma(wanted.env),
        "shm_bytes": wanted.shm_size,
        "stop_timeout": wanted.stop_grace * 2 + 15,
        # Beside what the rank runs, for who checks and says it: no reason to start it anew.
        "ranks": {name: {**rank, "fabric": dict(raw)} for (name, rank), raw in zip(ranks.items(), nodes)},
    }


def _key(settings: Mapping[str, Any], deployment: str) -> str | None:
    """Another key is another group, but a label must not help to guess the key: a slow hash."""
    key = settings.get("api_key")
    if not key:
        return None
    return hashlib.pbkdf2_hmac("sha256", str(key).encode(), f"unimem:{deployment}".encode(), 200_000).hex()


def kv_pool(text: str, engine: str, context_length: Any = None) -> dict[str, Any]:
    """The KV pool as the engine tells it; ``tokens`` is completed from the concurrency where only that is told."""
    reader = _Reader({"context_length": context_length})
    length = reader.number("context_length", None, 1)
    if reader.problems:
        raise PlanError("; ".join(reader.problems))
    pool = find_engine(engine).pool(text)
    if pool["tokens"] is None and pool["max_concurrency"] is not None and length is not None:
        pool["tokens"] = int(pool["max_concurrency"] * length)
    return pool
