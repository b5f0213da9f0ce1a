# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What every engine's file is written with: the settings of a launch, the nodes, the steps of a rank.

An engine is one file in this directory whose name does not begin with an underscore. It has

* ``NAMES``: its names, the first one the name it is known by everywhere;
* ``API_KEY``: the environment variable its processes take the API key from;
* ``GROUP_SECRETS``: environment variables of its processes that get a secret which all ranks of the launch share, and nobody else;
* ``STRUCTURAL``: options that the group's shape decides, so that a user's extra arguments may not repeat them;
* ``check(settings, nodes)``: sentences about settings that this engine cannot serve;
* ``steps(settings, nodes, node)``: the rank's processes in their order, for rank_supervisor.py;
* ``environment(settings, nodes, node)``: the environment of the rank's container;
* ``ready_url(settings)``: where rank 0 says that it is up (necessary, not sufficient: only a completion proves it);
* ``ports(settings, nodes, node)``: what must be free on that node, with what it is for;
* ``STAGES``: how far the engine is, by what it prints while it starts: a regular expression and words for people, in their order;
  a group ``percent`` in the expression is how much of the stage is done;
* ``pool_path()`` and ``pool(text)``: where rank 0 tells the size of its KV pool, and what is said there.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

#: Where the role mounts its own programs in the container, and the host's directory for compiled kernels.
PROGRAMS = "/opt/unimem"
CACHE = "/opt/unimem-cache"


class PlanError(ValueError):
    """The settings make no launch; the text says which setting and what to do."""


@dataclass(frozen=True)
class Node:
    """One node of the group: its rank, and what was found on it."""

    name: str
    rank: int
    interface: str
    address: str
    rdma_devices: tuple[str, ...] = ()
    rdma_character_devices: tuple[str, ...] = ()
    mtu: int | None = None

    @property
    def role(self) -> str:
        """``head`` for rank 0, ``worker`` for the others."""
        return "head" if self.rank == 0 else "worker"

    @property
    def rdma(self) -> bool:
        """Whether a container on it can have RDMA devices that are active."""
        return bool(self.rdma_devices and self.rdma_character_devices)


@dataclass(frozen=True)
class Settings:
    """A launch's settings, checked and converted; sizes in bytes. None means: the engine's own default."""

    engine: str
    model_path: str
    served_model_name: str
    tensor_parallel: int
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    gpus_per_node: int = 1
    port: int = 8000
    bind: str = "0.0.0.0"
    ray_port: int = 6379
    rendezvous_port: int = 29501
    control_port: int = 29400
    has_api_key: bool = False
    context_length: int | None = None
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    mem_fraction_static: float | None = None
    kv_cache_memory: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    speculative_tokens: int = 0
    prefix_caching: bool | None = None
    language_model_only: bool = False
    eager: bool = False
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ray_object_store_memory: int = 1024**3
    start_timeout: int = 1800
    join_timeout: int = 300
    stop_grace: int = 30
    shm_size: int = 10 * 1024**3
    cache_directory: str = ""


class Engine(Protocol):
    """The functions of an engine's file."""

    NAMES: tuple[str, ...]
    API_KEY: str
    GROUP_SECRETS: tuple[str, ...]
    STRUCTURAL: tuple[str, ...]
    STAGES: tuple[tuple[str, str], ...]

    def check(self, settings: Settings, nodes: Sequence[Node]) -> list[str]: ...

    def steps(self, settings: Settings, nodes: Sequence[Node], node: Node) -> list[dict[str, Any]]: ...

    def environment(self, settings: Settings, nodes: Sequence[Node], node: Node) -> dict[str, str]: ...

    def ready_url(self, settings: Settings) -> str: ...

    def ports(self, settings: Settings, nodes: Sequence[Node], node: Node) -> dict[int, str]: ...

    def pool_path(self) -> str: ...

    def pool(self, text: str) -> dict[str, Any]: ...


def local_address(bind: str) -> str:
    """How the head itself reaches a server that is bound so: a literal for a URL, IPv6 in brackets."""
    try:
        address = ipaddress.ip_address(bind)
    except ValueError:
        return bind
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return str(address) if address.version == 4 else f"[{address}]"


def url_host(address: str) -> str:
    """An address as it is written in ``HOST:PORT`` and in URLs."""
    return f"[{address}]" if ":" in address else address


#: With these NCCL says which transport it uses (``_transport.py``).
NCCL_TELLS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


def rdma_everywhere(nodes: Sequence[Node]) -> bool:
    """Whether the ranks are on several nodes, all of which can use RDMA."""
    return len(nodes) > 1 and all(node.rdma for node in nodes)


#: What keeps a rank alive and its compilers from taking the pool; see engine files for what is one engine's own.
STEADY = {
    # PyTorch's monitor aborts a rank whose watchdog thread was stuck for 480 s: idle pairs were lost to it (vllm#42742), and ranks whose storage
    # hung and came back. A rank that is really dead is found by its tokens.
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3600",
    # Kernels that are compiled at the first start take up to 8 GiB a job, and ninja starts one a core: more than the pool (flashinfer#3634). Four jobs
    # were seen to do on machines of 61 and 64 GB (flashinfer#3636, vllm#14452), which is what is left beside the weights of half a pool.
    "MAX_JOBS": "4",
    "NVCC_THREADS": "1",
}
#: How long vLLM's server waits for its core. It matters only while a group starts, so that another value is no other group.
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
#: Each compiler's own variable, and its place below CACHE. Torch's extensions are left out: a rank that is killed while it builds one leaves a
#: lock file, for which the next one would wait for ever.
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}


def cache_environment(settings: Settings, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where a rank's compilers keep what they made, so that the next launch on the host need not; nothing where no directory is kept."""
    if not settings.cache_directory:
        return {}
    return {name: f"{CACHE}/{place}" for name, place in {**_CACHES, **(more or {})}.items()}


def common_environment(nodes: Sequence[Node], node: Node) -> dict[str, str]:
    """What every engine's collectives need: this node's own interface and address, never another node's.

    The list is that of NVIDIA's two-Spark playbook, plus what keeps a rank from leaving
    the machine (model hubs, usage statistics) and from sending its own traffic through a proxy.
    """
    everyone = ",".join(["localhost", "127.0.0.1", *(peer.address for peer in nodes)])
    environment = {
        "NCCL_SOCKET_IFNAME": node.interface,
        "GLOO_SOCKET_IFNAME": node.interface,
        "TP_SOCKET_IFNAME": node.interface,
        "UCX_NET_DEVICES": node.interface,
        "OMPI_MCA_btl_tcp_if_include": node.interface,
        "MASTER_ADDR": nodes[0].address,
        "NO_PROXY": everyone,
        "no_proxy": everyone,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        **STEADY,
    }
    if node.rdma:
        environment["NCCL_IB_HCA"] = ",".join(node.rdma_devices)
        environment["NCCL_IB_DISABLE"] = "0"
    if rdma_everywhere(nodes):
        # NCCL falls back to sockets without a word at its usual level. These are some lines a communicator, and none while it serves.
        environment.update(NCCL_TELLS)
    return environment


def service(name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A process that must stay."""
    return {"name": name, "kind": "service", "argv": list(argv), "env": dict(env or {})}


def gate(name: str, argv: Sequence[str], timeout: int) -> dict[str, Any]:
    """A process that must succeed, within ``timeout`` seconds, before the next step."""
    return {"name": name, "kind": "gate", "argv": list(argv), "env": {}, "timeout": timeout}


def open_port(name: str, address: str, port: int, timeout: int) -> dict[str, Any]:
    """A port that must be open, within ``timeout`` seconds, before the next step."""
    return {"name": name, "kind": "tcp", "address": address, "port": port, "timeout": timeout}


def option(name: str, value: Any) -> list[str]:
    """``--name value``, or nothing when there is no value."""
    return [] if value is None else [name, str(value)]


def prometheus(text: str, metric: str) -> dict[str, str]:
    """The labels of the first sample of a metric in a Prometheus text; empty when it is not there."""
    for line in text.splitlines():
        if line.startswith(metric + "{"):
            labels = line[len(metric) + 1 :].rsplit("}", 1)[0]
            return {name: value.replace('\\"', '"') for name, value in re.findall(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"', labels)}
    return {}


def whole(text: str | None) -> int | None:
    """A whole number of a label ("1250", "1250.0"), or None ("None", "", absent)."""
    try:
        return int(float(text or ""))
    except (ValueError, OverflowError):
        return None


def real(text: str | None) -> float | None:
    """A finite number of a label, or None."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
