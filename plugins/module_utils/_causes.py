# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The messages that engines, Ray, NCCL, CUDA, Docker, the kernel, rsync, ssh and this collection are known to end with.

One entry says who writes a message, how it is recognised, what kind of failure it is, what to do about it, and how much it says:

* ``ROOT``: the message tells of a failure of its own (no memory, a port that is taken). It explains whatever comes after it.
* ``SYMPTOM``: the message can as well be what another rank's failure looks like from here (a connection that broke, a wait that ended).
* ``ECHO``: the message only says that something failed elsewhere, and never why.

A remedy is a text with fields in braces: what the pattern's groups found in the message, and the figures of the node that
``_diagnosis.numbers`` names. The first entry that matches a line is taken, so that the more particular one stands first.
"""

from __future__ import annotations

import re
import typing as t

ROOT, SYMPTOM, ECHO = 0, 1, 2

#: What failures are called by, and what each means.
CLASSES: dict[str, str] = {
    "memory": "there was not enough memory in the pool",
    "network": "the nodes did not reach each other as they should",
    "image": "the image is missing, another one on a node, or cannot run this",
    "model": "the model's files are missing, damaged or unknown to the engine",
    "port": "a port or an address was taken",
    "driver": "the GPU or its driver did not work",
    "timeout": "something took longer than it may",
    "disk": "a file system was full or failed",
    "docker": "the container engine failed or was restarted",
    "settings": "the engine refused what it was told",
    "killed": "a rank was killed or stopped from outside",
    "engine": "the engine ended with an error of its own",
    "controller": "the run itself went wrong on the controller",
    "unknown": "no known message was found",
}


class Cause(t.NamedTuple):
    """One known message."""

    name: str
    kind: str
    source: str
    level: int
    #: This text is in every such line; looking for it is cheap.
    needle: str
    #: Where the needle alone does not decide, or where figures are in the message. Bounded, so that it is linear over any text.
    pattern: re.Pattern[str] | None
    remedy: str


class Match(t.NamedTuple):
    """A line that a known message was found in, with what its pattern found."""

    cause: Cause
    fields: dict[str, str]


def _c(name: str, kind: str, source: str, level: int, needle: str, remedy: str, pattern: str | None = None) -> Cause:
    return Cause(name, kind, source, level, needle, None if pattern is None else re.compile(pattern), remedy)


_MAKE_ROOM = (
    "At the launch {node} had {free} free and {cache} of page cache, {available} available in all. Held there: {holders}. "
    "Let the play evict more (service_eviction_services, policy if_needed), or ask for less (tp_launch_kv_cache_memory, tp_launch_context_length)."
)
_STAY = "Run 'nvidia-smi' on {node}: where it fails too, reboot the node; where it works, restart the container engine and deploy again."
_LINK = "Look at the cable and at 'ip -s link show {interface}' on both nodes; fabric_info and fabric_of say which link was chosen and why."
_OTHER_RANK = "This is how another rank's end looks from here: read the other ranks' logs, at the same second, first."

CAUSES: tuple[Cause, ...] = (
    # --- memory: CUDA ---------------------------------------------------------------------------------------------------
    _c(
        "cuda_allocation",
        "memory",
        "torch",
        ROOT,
        "CUDA out of memory",
        "It asked for {asked} more. " + _MAKE_ROOM,
        r"CUDA out of memory(?:\. Tried to allocate (?P<asked>[0-9.]{1,12} [KMGT]iB))?",
    ),
    _c(
        "cuda_context",
        "memory",
        "cuda",
        ROOT,
        "CUDA error: out of memory",
        "A CUDA context needs memory that is free, not only available: page cache does not make room for it, and a smaller fraction does not help. "
        "Evict the cache (service_eviction_drop_page_cache, or the play's own eviction) right before the launch. " + _MAKE_ROOM,
    ),
    _c("cuda_driver", "memory", "cuda", ROOT, "CUDA driver error: out of memory", _MAKE_ROOM),
    _c("cuda_allocation_failed", "memory", "cuda", ROOT, "cudaErrorMemoryAllocation", _MAKE_ROOM, r"cudaErrorMemoryAllocation(?!')"),
    _c("cublas_allocation", "memory", "cuda", ROOT, "_STATUS_ALLOC_FAILED", _MAKE_ROOM, r"(?:CUBLAS|CUDNN|CUSOLVER)_STATUS_ALLOC_FAILED"),
    _c("nccl_memory", "memory", "nccl", ROOT, "Cuda failure", _MAKE_ROOM, r"Cuda failure (?:2 )?'out of memory'"),
    # --- memory: the engines' own checks ----------------------------------------------------------------------------------
    _c(
        "vllm_start_check",
        "memory",
        "vllm",
        ROOT,
        "less than desired GPU memory utilization",
        "vLLM saw {seen} of {total} GiB and asks for {asked} GiB (utilization {utilization}) before it loads anything. Give a smaller "
        "tp_launch_gpu_memory_utilization together with tp_launch_kv_cache_memory (the check reads only the first), or free memory on {node}. " + _MAKE_ROOM,
        r"Free memory on device \S{1,20} \((?P<seen>[0-9.]{1,9})/(?P<total>[0-9.]{1,9}) GiB\) on startup is less than desired GPU memory "
        r"utilization \((?P<utilization>[0-9.]{1,9}), (?P<asked>[0-9.]{1,9}) GiB\)",
    ),
    _c(
        "vllm_kv_cache",
        "memory",
        "vllm",
        ROOT,
        "KV cache is needed, which is larger",
        "One request of {length} tokens needs {asked} GiB of KV cache, and {seen} GiB are there. Give a tp_launch_context_length of at most {estimated}, "
        "a KV cache of 8 bits (tp_launch_kv_cache_dtype: fp8), or more tp_launch_kv_cache_memory.",
        r"(?:seq len \((?P<length>[0-9]{1,9})\), \(?)?(?P<asked>[0-9.]{1,9}) GiB KV cache is needed, which is larger than the available KV cache memory"
        r"(?: \((?P<seen>-?[0-9.]{1,9}) GiB\))?"
        r"(?:\.? {0,2}(?:Based on the available memory, the|The) estimated maximum model length is (?P<estimated>[0-9]{1,9}))?",
    ),
    _c(
        "vllm_no_blocks",
        "memory",
        "vllm",
        ROOT,
        "No available memory for the cache blocks",
        "What utilization leaves after weights and activations is nothing. On a unified pool the engine charges itself every other change of it: give the "
        "KV cache in bytes (tp_launch_kv_cache_memory). " + _MAKE_ROOM,
    ),
    _c(
        "vllm_profiling",
        "memory",
        "vllm",
        ROOT,
        "Error in memory profiling",
        "Memory came back on {node} while the engine was measuring. Give the KV cache in bytes (tp_launch_kv_cache_memory), which skips the measuring.",
    ),
    _c(
        "sglang_unbalanced",
        "memory",
        "sglang",
        ROOT,
        "memory capacity is unbalanced",
        "The smallest rank must have nine tenths of what this one has ({seen} of {local} GB here). Free memory, the page cache too, on the node that has "
        "less: a larger or smaller tp_launch_mem_fraction_static does not help.",
        r"memory capacity is unbalanced(?:[^=]{0,120}=(?P<seen>[0-9.]{1,24}), local_gpu_memory=(?P<local>[0-9.]{1,24}))?",
    ),
    _c(
        "sglang_not_enough",
        "memory",
        "sglang",
        ROOT,
        "Please try to increase --mem-fraction-static",
        "The fraction ({fraction}) is of what is available before the load, and the weights alone take more. Raise tp_launch_mem_fraction_static, or free "
        "memory on {node}. " + _MAKE_ROOM,
        r"Not enough memory\. Please try to increase --mem-fraction-static(?:\.[^=]{0,80}mem_fraction_static=(?P<fraction>[0-9.]{1,9}))?",
    ),
    _c(
        "ray_memory",
        "memory",
        "ray",
        ROOT,
        "running low on memory",
        "Ray's own monitor ended the rank at {share}. RAY_memory_monitor_refresh_ms=0 turns it off, on every node; the role sets it, so look who overrides it "
        "in tp_launch_env. " + _MAKE_ROOM,
        r"running low on memory(?:[^()]{0,400}\([^()]{0,200}\)){0,3}(?:[^()]{0,200}\((?P<share>0\.[0-9]{1,9})\))?",
    ),
    _c(
        "ray_threshold",
        "memory",
        "ray",
        ROOT,
        "exceeds the memory usage threshold",
        "Ray's own monitor ended the rank. RAY_memory_monitor_refresh_ms=0 turns it off, on every node. " + _MAKE_ROOM,
    ),
    _c(
        "shm_full",
        "memory",
        "nccl",
        ROOT,
        "shared memory segment",
        "/dev/shm of the container is full: give it more (tp_launch_shm_size); it counts as memory of the pool.",
        r"[Ee]rror while (?:creating|attaching to) shared memory segment",
    ),
    _c("shm_bus_error", "memory", "torch", ROOT, "insufficient shared memory", "Give the container more /dev/shm (tp_launch_shm_size)."),
    _c(
        "memlock",
        "memory",
        "nccl",
        ROOT,
        "ibv_reg_mr",
        "RDMA could not lock memory: the container needs 'memlock:-1:-1' (tp_launch_ulimits) and IPC_LOCK (tp_launch_capabilities).",
        r"ibv_reg_mr\w{0,20}[^\n]{0,200}(?:Cannot allocate memory|failed)",
    ),
    _c("host_allocator", "memory", "torch", ROOT, "DefaultCPUAllocator: can't allocate memory", _MAKE_ROOM),
    _c("bad_alloc", "memory", "python", ROOT, "std::bad_alloc", _MAKE_ROOM),
    _c(
        "errno_12",
        "memory",
        "python",
        ROOT,
        "Cannot allocate memory",
        _MAKE_ROOM,
        r"(?:\[Errno 12\] |\(12\)|errno[ :=]{1,3}12[^0-9]|os error 12|: )Cannot allocate memory",
    ),
    # --- memory: the kernel and watchdogs ---------------------------------------------------------------------------------
    _c(
        "kernel_cgroup_oom",
        "memory",
        "kernel",
        ROOT,
        "Memory cgroup out of memory",
        "A limit of the container's control group ended process {pid} ({process}). It does not even see what CUDA takes: remove the limit.",
        r"Memory cgroup out of memory: Killed process (?P<pid>[0-9]{1,9}) \((?P<process>[^)]{0,40})\)",
    ),
    _c(
        "kernel_oom",
        "memory",
        "kernel",
        ROOT,
        "Killed process",
        "The kernel ran out of memory and ended process {pid} ({process}, {resident} kB resident; what it held of the GPU is not in that). " + _MAKE_ROOM,
        r"Killed process (?P<pid>[0-9]{1,9}) \((?P<process>[^)]{0,40})\)(?:[^:]{0,80}:[^:]{0,40}, anon-rss:(?P<resident>[0-9]{1,12})kB)?",
    ),
    _c(
        "driver_no_memory",
        "memory",
        "kernel",
        ROOT,
        "NV_ERR_NO_MEMORY",
        "The driver found no memory for the GPU; the node may hang soon. Free memory is no proof against it when it is in small pieces: reboot a node that "
        "has been up for days. " + _MAKE_ROOM,
    ),
    _c(
        "earlyoom",
        "memory",
        "watchdog",
        ROOT,
        "badness",
        "earlyoom ended process {pid} ({process}). Lower its thresholds (-m, -s), or keep more free: deploy_reserve.",
        r"sending SIG(?:TERM|KILL) to process (?P<pid>[0-9]{1,9}) uid [0-9]{1,9} \"(?P<process>[^\"]{0,40})\"",
    ),
    _c(
        "systemd_oomd",
        "memory",
        "watchdog",
        ROOT,
        "due to memory pressure",
        "systemd-oomd ended {process}. Keep more free (deploy_reserve), or exempt docker's slice from it (ManagedOOMMemoryPressure=auto).",
        r"Killed (?P<process>[^ ]{1,200}) due to memory pressure",
    ),
    _c(
        "nohang",
        "memory",
        "watchdog",
        ROOT,
        "nohang",
        "nohang ended a process: raise its thresholds' limits or deploy_reserve.",
        r"nohang[^\n]{0,200}[Ss]ending SIG(?:TERM|KILL)",
    ),
    _c(
        "memory_floor",
        "memory",
        "unimem",
        ROOT,
        "memory floor",
        "The lease on {node} ended the launch because too little was available there. " + _MAKE_ROOM,
    ),
    _c("no_room", "memory", "unimem", ROOT, "room was made, but", _MAKE_ROOM),
    _c(
        "does_not_fit",
        "memory",
        "unimem",
        ROOT,
        "does_not_fit",
        "The prediction says that it cannot fit, whatever is stopped: the message has what would help, with figures.",
    ),
    _c(
        "eviction_not_enough",
        "memory",
        "unimem",
        ROOT,
        "not_enough",
        "What may be stopped is not enough. Held on {node}: {holders}. Name more in service_eviction_services, or ask for less.",
    ),
    _c(
        "eviction_unfinished",
        "memory",
        "unimem",
        ROOT,
        "still_held",
        "Memory did not come back after its holders were stopped. Held on {node}: {holders}. Wait, run again, and where it stays: reboot the node.",
        r"still_held|held_by_driver|unkillable_reboot|respawning",
    ),
    # --- port -------------------------------------------------------------------------------------------------------------
    _c(
        "port_listen",
        "port",
        "torch",
        ROOT,
        "EADDRINUSE",
        "Port {port} is taken on {node}: 'ss -tanp' there says by whom (a rank of an older launch, another engine). Stop it, or choose another port.",
        r"(?:port: (?P<port>[0-9]{1,5})[^\n]{0,200})?EADDRINUSE",
    ),
    _c(
        "port_bind",
        "port",
        "python",
        ROOT,
        " to bind on address",
        "Port {port} is taken on {node}: 'ss -tanp' there says by whom. Stop it, or choose another tp_launch_port.",
        r"attempt(?:ing)? to bind on address \('(?P<address>[^']{1,60})', (?P<port>[0-9]{1,5})[^)]{0,30}\)",
    ),
    _c(
        "rank_cannot_listen",
        "port",
        "unimem",
        ROOT,
        "cannot listen on",
        "The ranks' meeting point, port {port}, is taken on {node}: 'ss -tanp' there says by whom. Stop it, or choose another tp_launch_control_port.",
        r"cannot listen on (?P<address>[0-9A-Fa-f.:]{2,45}) port (?P<port>[0-9]{1,5}): Address already in use",
    ),
    _c(
        "port_taken_before",
        "port",
        "unimem",
        ROOT,
        " is taken: ",
        "Port {port} of {node} is somebody's, as the message says. Stop that, or choose another port.",
        r"port (?P<port>[0-9]{1,5}) \([^)]{1,60}\) is taken: ",
    ),
    _c(
        "ray_port",
        "port",
        "ray",
        ROOT,
        "is trying to use a port number",
        "Port {port} is taken on {node}, mostly by an older Ray: 'ss -tanp' there says by whom. Stop it, or choose another tp_launch_ray_port.",
        r"is trying to use a port number (?P<port>[0-9]{1,5})",
    ),
    _c(
        "ray_running",
        "port",
        "ray",
        ROOT,
        "Ray is trying to start at",
        "An older Ray still runs there: 'ray stop --force' in its container, or stop the container.",
        r"Ray is trying to start at [^,\n]{1,80}, but is already running",
    ),
    _c("docker_port", "port", "docker", ROOT, "port is already allocated", "Another container has the port: 'docker ps' on {node} names it."),
    _c(
        "errno_98",
        "port",
        "python",
        ROOT,
        "ddress already in use",
        "A port is taken on {node}: 'ss -tanp' there says by whom (also in TIME-WAIT, and on other addresses). Stop it, or choose another port.",
        r"(?:\[Errno 98\] |\(98\)|errno[ :=]{1,3}98[^0-9]|os error 98|bind[^\n]{0,80}|listen[^\n]{0,80}|: )[Aa]ddress already in use",
    ),
    # --- image ------------------------------------------------------------------------------------------------------------
    _c(
        "ray_versions",
        "image",
        "ray",
        ROOT,
        "Version mismatch: The cluster was started with",
        "The ranks run different versions of Ray or Python, that is, different images: let image_build bring the same one to all nodes "
        "(image_build_digest), and start no rank by hand.",
    ),
    _c(
        "no_program",
        "image",
        "unimem",
        ROOT,
        "cannot be started: No such file or directory",
        "The image has no '{program}'. Choose one that has it (NVIDIA's vLLM container has no Ray; playbooks/engines/vllm_ray adds it).",
        r"cannot be started: No such file or directory: (?P<program>[^\n]{1,200})",
    ),
    _c("exec_format", "image", "docker", ROOT, "exec format error", "The image is for another processor: a Spark needs linux/arm64."),
    _c("no_platform", "image", "docker", ROOT, "no matching manifest for", "The image has no variant for this processor: a Spark needs linux/arm64."),
    _c("no_image", "image", "docker", ROOT, "No such image", "The role image_build brings the image to all nodes; it is never pulled at a launch."),
    _c(
        "no_image_here",
        "image",
        "unimem",
        ROOT,
        "does not have the image",
        "The role image_build brings the image to all nodes; it is never pulled at a launch.",
    ),
    _c(
        "another_image",
        "image",
        "unimem",
        ROOT,
        "has another image under the name",
        "Different images run different versions of the engine, Ray or Python: let image_build bring the same one to all nodes (image_build_digest).",
    ),
    _c(
        "unable_to_find_image",
        "image",
        "docker",
        ROOT,
        "Unable to find image",
        "The role image_build brings the image to all nodes; it is never pulled at a launch.",
    ),
    _c("manifest_unknown", "image", "docker", ROOT, "manifest unknown", "The registry does not have that tag or digest: look at image_build_digest."),
    _c(
        "pull_denied",
        "image",
        "docker",
        ROOT,
        "pull access denied",
        "Log in to the registry on the host that pulls (image_build_host), or correct the image's name.",
    ),
    _c("pull_rate", "image", "docker", ROOT, "toomanyrequests", "The registry limits pulls: log in to it, or wait."),
    _c(
        "no_kernels",
        "image",
        "cuda",
        ROOT,
        "no kernel image is available",
        "The image has no kernels for this GPU: take one that is built for compute capability 12.1 (sm_121).",
    ),
    _c("ptxas", "image", "cuda", ROOT, "ptxas fatal", "The image's CUDA compiler does not know this GPU: take an image with CUDA 13 or newer."),
    _c(
        "no_module",
        "image",
        "python",
        ROOT,
        "ModuleNotFoundError: No module named",
        "The image lacks the Python package '{module}'. Another image, or a layer on it (image_build_context), has to bring it.",
        r"ModuleNotFoundError: No module named '(?P<module>[^']{1,100})'",
    ),
    _c(
        "no_library",
        "image",
        "python",
        ROOT,
        "cannot open shared object file",
        "The image lacks a library, mostly because it is made for another CUDA.",
        r"(?:ImportError|OSError): [^\n]{1,200}cannot open shared object file",
    ),
    _c("glibc", "image", "python", ROOT, "GLIBC", "The image's base system is too old for what is in it.", r"version `GLIBC(?:XX)?_[0-9.]{1,12}' not found"),
    # --- model ------------------------------------------------------------------------------------------------------------
    _c(
        "transformers_unknown",
        "model",
        "transformers",
        ROOT,
        "does not recognize this architecture",
        "The image's transformers does not know the model type {type}: take a newer image.",
        r"model type `(?P<type>[^`]{1,60})` but Transformers does not recognize this architecture",
    ),
    _c(
        "not_supported",
        "model",
        "vllm",
        ROOT,
        "are not supported for now",
        "This version of the engine does not know the model: take a newer image.",
        r"Model architectures? [^\n]{1,200}are not supported for now",
    ),
    _c("not_inspected", "model", "vllm", ROOT, "failed to be inspected", "This version of the engine cannot load the model's code: take a newer image."),
    _c(
        "heads",
        "model",
        "vllm",
        ROOT,
        "must be divisible by tensor parallel size",
        "{heads} heads cannot be split over {tensor} ranks: take a tp_launch_tensor_parallel that divides them, and pipeline parallel for the rest.",
        r"attention heads \((?P<heads>[0-9]{1,6})\) must be divisible by tensor parallel size \((?P<tensor>[0-9]{1,4})\)",
    ),
    _c("quant_block", "model", "vllm", ROOT, "is not divisible by weight quantization block", "The quantisation's blocks do not split over this many ranks."),
    _c(
        "truncated_weights",
        "model",
        "safetensors",
        ROOT,
        "while deserializing header",
        "A file of the weights is damaged or was not copied whole on {node}: run the deployment with model_sync_verify: content.",
        r"Error while deserializing header",
    ),
    _c("no_weights", "model", "vllm", ROOT, "Cannot find any model weights", "The model's directory on {node} has no weights: run the role model_sync."),
    _c("no_config", "model", "transformers", ROOT, "does not appear to have a file named", "The model is not whole on {node}: run the role model_sync."),
    _c(
        "not_a_repo",
        "model",
        "transformers",
        ROOT,
        "Incorrect path_or_model_id",
        "The model's directory is not there in the container on {node}: run the role model_sync.",
    ),
    _c(
        "offline",
        "model",
        "transformers",
        ROOT,
        "LocalEntryNotFoundError",
        "Something of the model is to be downloaded, and ranks may not: complete the model on the source.",
    ),
    _c(
        "no_weight_file",
        "model",
        "python",
        ROOT,
        "No such file or directory",
        "A file of the model is missing on {node}: run the role model_sync.",
        r"No such file or directory: ['\"][^'\"\n]{1,400}\.(?:safetensors|json|bin|gguf|model)['\"]",
    ),
    _c(
        "unknown_weight",
        "model",
        "vllm",
        ROOT,
        "There is no module or parameter named",
        "The engine's code and the checkpoint do not belong together: another image or revision.",
    ),
    _c(
        "model_missing",
        "model",
        "unimem",
        ROOT,
        "/config.json. tp_launch_model_path has to be",
        "Run the role model_sync, or give the directory that has the model on all hosts.",
    ),
    _c(
        "model_incomplete",
        "model",
        "unimem",
        ROOT,
        "is not complete",
        "Complete the model on the source host (hf download), then run again.",
        r"(?:model|repository|snapshot|tree)[^\n]{0,200} is not complete",
    ),
    # --- driver -----------------------------------------------------------------------------------------------------------
    _c(
        "driver_mismatch",
        "driver",
        "nvml",
        ROOT,
        "Driver/library version mismatch",
        "The driver was updated and the kernel still runs the old one: reboot {node}.",
    ),
    _c(
        "nvml_unknown",
        "driver",
        "nvml",
        ROOT,
        "Failed to initialize NVML",
        "A container has lost its GPU (after a daemon-reload of systemd): start the ranks anew. " + _STAY,
    ),
    _c("no_gpus", "driver", "torch", ROOT, "No CUDA GPUs are available", _STAY),
    _c("no_driver", "driver", "torch", ROOT, "Found no NVIDIA driver", _STAY),
    _c("no_device_type", "driver", "vllm", ROOT, "Failed to infer device type", "The engine sees no GPU in its container. " + _STAY),
    _c(
        "old_driver",
        "driver",
        "cuda",
        ROOT,
        "driver version is insufficient",
        "The image needs a newer driver than {node} has: take an image with an older CUDA, or update the node.",
    ),
    _c(
        "unsupported_combination",
        "driver",
        "cuda",
        ROOT,
        "unsupported display driver / cuda driver combination",
        "The image's CUDA compatibility libraries and the node's driver do not fit.",
    ),
    _c(
        "no_gpu_runtime",
        "driver",
        "docker",
        ROOT,
        "could not select device driver",
        "Install nvidia-container-toolkit on {node}, and run 'nvidia-ctk runtime configure'.",
    ),
    _c(
        "container_cli",
        "driver",
        "docker",
        ROOT,
        "nvidia-container-cli",
        "The container toolkit does not reach the driver on {node}. " + _STAY,
        r"nvidia-container-cli[^\n]{0,40}: [^\n]{0,40}error",
    ),
    _c(
        "cdi",
        "driver",
        "docker",
        ROOT,
        "CDI device",
        "Run 'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml' on {node}.",
        r"un(?:resolvable|known) CDI device",
    ),
    _c("xid", "driver", "kernel", ROOT, "NVRM: Xid", "The GPU reported Xid {xid}. " + _STAY, r"NVRM: Xid \([^)]{1,60}\): (?P<xid>[0-9]{1,4})"),
    _c("fallen_off", "driver", "kernel", ROOT, "has fallen off the bus", "Power {node} off and on."),
    _c(
        "illegal_access",
        "driver",
        "cuda",
        ROOT,
        "an illegal memory access",
        "A kernel of the engine is at fault: another version of the image, or tp_launch_eager: true.",
    ),
    _c(
        "launch_failure",
        "driver",
        "cuda",
        ROOT,
        "unspecified launch failure",
        "A kernel of the engine is at fault: another version of the image, or tp_launch_eager: true.",
    ),
    _c(
        "ray_no_gpu",
        "driver",
        "ray",
        ROOT,
        "Current node has no GPU available",
        "Ray's node and the engine go by different addresses, or an older group holds the GPU: stop all ranks, and start them together.",
    ),
    # --- disk -------------------------------------------------------------------------------------------------------------
    _c(
        "disk_full",
        "disk",
        "system",
        ROOT,
        "o space left on device",
        "A file system of {node} is full ({disks}): make room there, and run again.",
        r"[Nn]o space left on device",
    ),
    _c("disk_quota", "disk", "system", ROOT, "Disk quota exceeded", "A quota on {node} is used up ({disks})."),
    _c(
        "io_error",
        "disk",
        "kernel",
        ROOT,
        "I/O error",
        "A disk of {node} fails: 'dmesg' there says which.",
        r"(?:blk_update_request|Buffer)[^\n]{0,20}I/O error|critical (?:medium|target) error",
    ),
    _c("disk_not_enough", "disk", "unimem", ROOT, "are free on its file system", "Make room on {node} ({disks}), and run again."),
    _c("ray_disk", "disk", "ray", SYMPTOM, "% full, available space", "The file system of Ray's directory is nearly full ({disks})."),
    # --- docker -----------------------------------------------------------------------------------------------------------
    _c(
        "no_daemon",
        "docker",
        "docker",
        ROOT,
        "Cannot connect to the Docker daemon",
        "Docker does not run on {node}, or may not be used: 'systemctl status docker' there.",
    ),
    _c(
        "no_daemon_api",
        "docker",
        "docker",
        ROOT,
        "Error while fetching server API version",
        "Docker does not run on {node}, or may not be used: 'systemctl status docker' there.",
    ),
    _c("name_conflict", "docker", "docker", ROOT, "Conflict. The container name", "A container of that name is there already: remove or rename it."),
    _c("name_foreign", "docker", "unimem", ROOT, "that is none of ours", "Rename or remove that container; it is nobody's of ours to replace."),
    _c(
        "rlimit",
        "docker",
        "docker",
        ROOT,
        "error setting rlimit",
        "Docker may not set that limit (rootless, or without CAP_SYS_RESOURCE): leave it out of tp_launch_ulimits.",
    ),
    _c(
        "no_device",
        "docker",
        "docker",
        ROOT,
        "error gathering device information",
        "A device of tp_launch_devices (or /dev/infiniband) is not there on {node}.",
    ),
    _c("oci", "docker", "docker", ROOT, "OCI runtime create failed", "The container could not be made; the message says at what."),
    _c(
        "read_only",
        "disk",
        "system",
        ROOT,
        "Read-only file system",
        "A file system of {node} is read-only, mostly after an error of its disk: 'dmesg' there says more.",
        r"(?:\[Errno 30\]|\(30\)|[a-z]:) ?Read-only file system",
    ),
    # --- network ----------------------------------------------------------------------------------------------------------
    _c(
        "loopback",
        "network",
        "nccl",
        ROOT,
        "127.",
        "The other rank's name is its own loopback address (/etc/hosts has it at {address}): remove that line there, or name the fabric's address.",
        r"(?:[Cc]onnect(?:ing)? to|connectFullMesh[^\n]{0,120}remote=\[)\D{0,12}(?P<address>127\.(?!0\.0\.1(?![0-9]))[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})"
        r"[^\n]{0,80}(?:refused|failed|timed out)",
    ),
    _c(
        "no_socket_interface",
        "network",
        "nccl",
        ROOT,
        "no socket interface found",
        "NCCL_SOCKET_IFNAME names no link of {node}: the role sets it, so look who overrides it in tp_launch_env. " + _LINK,
    ),
    _c(
        "gloo_interface",
        "network",
        "gloo",
        ROOT,
        "Unable to find",
        "GLOO_SOCKET_IFNAME names no link of {node}: the role sets it, so look who overrides it in tp_launch_env. " + _LINK,
        r"Unable to find (?:interface|address) for",
    ),
    _c(
        "errno_99",
        "network",
        "python",
        ROOT,
        "annot assign requested address",
        "The engine was given an address that {node} does not have. " + _LINK,
        r"(?:\[Errno 99\] |\(99\)|errno[ :=]{1,3}99[^0-9]|os error 99|: )[Cc]annot assign requested address",
    ),
    _c(
        "unique_address",
        "network",
        "vllm",
        ROOT,
        "Every node should have a unique IP address",
        "Two nodes go by one address, or one by two: set VLLM_HOST_IP to the fabric's address on each (the role does).",
    ),
    _c(
        "rdma_retry",
        "network",
        "nccl",
        ROOT,
        "Got completion from peer",
        "RDMA gave up on the link. " + _LINK,
        r"Got completion from peer [^\n]{0,120}status=(?P<status>[0-9]{1,3})",
    ),
    _c(
        "rdma_qp",
        "network",
        "nccl",
        ROOT,
        "ibv_modify_qp failed",
        "The GID or the link is not right (NCCL_IB_GID_INDEX differs between nodes: leave it out). " + _LINK,
    ),
    _c(
        "link_down",
        "network",
        "kernel",
        ROOT,
        "Link",
        "{link} of {node} went down. Look at the cable.",
        r"(?P<link>[A-Za-z0-9]{2,15}): (?:NIC )?Link (?:is )?[Dd]own",
    ),
    _c(
        "fabric_unreached",
        "network",
        "unimem",
        ROOT,
        "fabric addresses cannot be",
        "Look at the cable, the firewall and the routes between the named addresses.",
    ),
    _c(
        "no_fabric",
        "network",
        "unimem",
        ROOT,
        "no subnet is shared by all nodes",
        "Give the two ends of the cable addresses in one subnet, and set the links up: the message lists what each node has.",
    ),
    _c(
        "socket_fallback",
        "network",
        "unimem",
        ROOT,
        "tp_launch_rdma_strict: false only says it",
        "NCCL could not use the RDMA devices of {node}: the message says what it needs in the container.",
    ),
    _c("fabric_problem", "network", "unimem", ROOT, "tp_launch_fabric_strict: false only says it", "The message says what is wrong with the link."),
    _c(
        "ssh_key",
        "network",
        "ssh",
        ROOT,
        "Permission denied (publickey",
        "The key is not accepted: 'ssh' to {node} by hand, as the play does it (user, key, jump host).",
    ),
    _c(
        "ssh_host_key",
        "network",
        "ssh",
        ROOT,
        "Host key verification failed",
        "The node's key is not known, or another one than before: look who answers there, then correct known_hosts.",
    ),
    _c(
        "ssh_banner",
        "network",
        "ssh",
        ROOT,
        "banner exchange",
        "The node answers and its SSH server does not: it is most likely out of memory. "
        "Wait a few minutes, then power it off and on; do not try again and again.",
    ),
    _c(
        "ssh_kex",
        "network",
        "ssh",
        ROOT,
        "kex_exchange_identification",
        "The SSH server of {node} closed the connection at once: too many at a time, a ban, or no memory.",
    ),
    _c("ssh_name", "network", "ssh", ROOT, "Could not resolve hostname", "The inventory names a host that nobody knows: give ansible_host an address."),
    _c(
        "ssh_refused",
        "network",
        "ssh",
        ROOT,
        "ssh: connect to host",
        "{node} cannot be reached ({why}): is it on, is its SSH server up, is the way through the first node open? Look there.",
        r"ssh: connect to host [^\n]{1,120}: (?P<why>[A-Za-z ]{1,60})",
    ),
    _c(
        "rsync_code",
        "network",
        "rsync",
        SYMPTOM,
        "rsync error",
        "The copy between the nodes broke (code {code}). Run again: it goes on where it stopped.",
        r"rsync error: [^\n]{1,200}\(code (?P<code>10|11|12|20|255|30|35)\)",
    ),
    _c(
        "rsync_partial",
        "disk",
        "rsync",
        SYMPTOM,
        "rsync error",
        "Some files were not copied (code {code}): the lines before say which, and why (mostly permissions).",
        r"rsync error: [^\n]{1,200}\(code (?P<code>23|24|13|14)\)",
    ),
    _c(
        "gcs",
        "network",
        "ray",
        SYMPTOM,
        "onnect to GCS",
        "Ray's head does not answer on the fabric. " + _OTHER_RANK,
        r"(?:[Ff]ailed|[Uu]nable) to connect to GCS",
    ),
    _c(
        "foreign_ray",
        "network",
        "unimem",
        ROOT,
        "has nodes that are not of this launch",
        "Another Ray answers on that port: stop it, or choose another tp_launch_ray_port.",
    ),
    _c("ray_dead_node", "network", "ray", SYMPTOM, "has been marked dead", "Ray lost a node. " + _OTHER_RANK),
    _c(
        "placement",
        "timeout",
        "ray",
        SYMPTOM,
        "Cannot provide a placement group",
        "Not all nodes have joined Ray with a GPU each: 'ray status' in the head's container says which.",
    ),
    _c(
        "store_clients",
        "network",
        "torch",
        SYMPTOM,
        "clients joined",
        "{joined} ranks met. " + _OTHER_RANK,
        r"(?P<joined>[0-9]{1,4}/[0-9]{1,4}) clients joined",
    ),
    _c(
        "store_timeout",
        "network",
        "torch",
        SYMPTOM,
        "client socket has timed out",
        "Rank 0 could not be reached at {address}. " + _OTHER_RANK,
        r"client socket has timed out after [0-9]{1,9}ms while trying to connect to \((?P<address>[^)]{1,80})\)",
    ),
    _c("store_broken", "network", "torch", SYMPTOM, "DistStoreError", _OTHER_RANK),
    _c("store_network", "network", "torch", SYMPTOM, "DistNetworkError", _OTHER_RANK),
    _c("gloo_mesh", "network", "gloo", SYMPTOM, "Gloo connectFullMesh failed", _OTHER_RANK),
    _c("gloo_closed", "network", "gloo", SYMPTOM, "Connection closed by peer", _OTHER_RANK),
    _c("gloo_timeout", "network", "gloo", SYMPTOM, "gloo/transport", _OTHER_RANK, r"gloo/transport/[^\n]{1,80}(?:[Tt]imed out|reset by peer|[Cc]onnect)"),
    _c("nccl_remote", "network", "nccl", SYMPTOM, "ncclRemoteError", _OTHER_RANK),
    _c("nccl_system", "network", "nccl", SYMPTOM, "unhandled system error", _OTHER_RANK),
    _c("nccl_watchdog", "timeout", "nccl", SYMPTOM, "Watchdog caught collective operation timeout", _OTHER_RANK),
    _c("nccl_heartbeat", "timeout", "nccl", SYMPTOM, "watchdog got stuck", "The ranks waited for each other too long: both have to start anew."),
    _c("nccl_error", "network", "nccl", SYMPTOM, "NCCL error", _OTHER_RANK),
    _c("dist_backend", "network", "torch", SYMPTOM, "DistBackendError", _OTHER_RANK),
    _c("broken_pipe", "network", "python", SYMPTOM, "Broken pipe", _OTHER_RANK, r"(?:\[Errno 32\]|BrokenPipeError)"),
    _c("reset", "network", "python", SYMPTOM, "Connection reset by peer", _OTHER_RANK),
    _c("refused", "network", "python", SYMPTOM, "Connection refused", _OTHER_RANK),
    _c("no_route", "network", "system", SYMPTOM, "No route to host", "There is no way to the other node. " + _LINK),
    _c("unreachable_network", "network", "system", SYMPTOM, "Network is unreachable", "There is no way to the other node. " + _LINK),
    _c(
        "rank_not_met",
        "network",
        "unimem",
        SYMPTOM,
        "could not be met at",
        "Rank 0 was not there, or a firewall is between the nodes on port {port}.",
        r"rank 0 could not be met at (?P<address>[0-9A-Fa-f.:]{2,45}) port (?P<port>[0-9]{1,5})",
    ),
    _c("rank_lost", "network", "unimem", SYMPTOM, "is lost:", "Rank {rank}'s node or its link went away. " + _LINK, r"rank (?P<rank>[0-9]{1,6}) is lost:"),
    _c(
        "port_not_open",
        "network",
        "unimem",
        SYMPTOM,
        "did not open in time",
        "Port {port} at {address} never opened. " + _OTHER_RANK,
        r"(?P<address>[0-9A-Fa-f.:]{2,45}) port (?P<port>[0-9]{1,5}) did not open in time",
    ),
    # --- timeout ----------------------------------------------------------------------------------------------------------
    _c(
        "not_ready",
        "timeout",
        "unimem",
        SYMPTOM,
        "the engine was not ready within the time allowed",
        "The engine was still busy: {progress}. Give it longer (tp_launch_start_timeout), or find out what is slow on {node}.",
    ),
    _c(
        "not_met",
        "timeout",
        "unimem",
        SYMPTOM,
        "not all ranks had met within the time allowed",
        "A rank never came: its container did not start, or port and firewall keep it out.",
    ),
    _c("gate_slow", "timeout", "unimem", SYMPTOM, "did not succeed in time", "Not all nodes joined in time. " + _OTHER_RANK),
    _c(
        "core_start",
        "timeout",
        "vllm",
        SYMPTOM,
        "waiting for engine core processes to start",
        "The engine's core was not up in time: slow storage, or a rank that is missing.",
    ),
    _c("rpc", "timeout", "vllm", SYMPTOM, "RPC call to", "A rank did not answer. " + _OTHER_RANK, r"RPC call to [A-Za-z_]{1,60} timed out"),
    _c("shm_broadcast", "timeout", "vllm", ECHO, "No available shared memory broadcast block found", "The ranks wait for one of them."),
    _c("sglang_watchdog", "timeout", "sglang", SYMPTOM, "Watchdog timeout", "The scheduler was stuck. " + _OTHER_RANK, r"[Ww]atchdog timeout \("),
    _c(
        "completion_timeout",
        "timeout",
        "unimem",
        SYMPTOM,
        "timed out",
        "The endpoint says that it is up and returns no tokens: an engine with a dead rank does that. " + _OTHER_RANK,
        r"(?:Request failed|Connection failure|Status code was -1)[^\n]{0,200}timed out",
    ),
    _c(
        "completion_error",
        "engine",
        "unimem",
        SYMPTOM,
        "Status code was 5",
        "Health was 200 and the first completion failed: the log of the head says at what.",
        r"Status code was (?P<status>5[0-9]{2}) and not \[200\]",
    ),
    # --- settings ---------------------------------------------------------------------------------------------------------
    _c(
        "unrecognized",
        "settings",
        "engine",
        ROOT,
        "unrecognized arguments",
        "The engine has no {option}: look at tp_launch_extra_args, and at the engine's version.",
        r"error: unrecognized arguments: (?P<option>[^\n]{1,200})",
    ),
    _c(
        "stages_differ",
        "settings",
        "vllm",
        ROOT,
        "Workers disagree on supported KV cache layouts",
        "A pipeline stage has other kinds of layers than another one, such as none of full attention, and this vLLM wants the same in all of them: choose "
        "another tp_launch_pipeline_parallel, or set VLLM_PP_LAYER_PARTITION in tp_launch_env.",
    ),
    _c(
        "invalid_argument",
        "settings",
        "engine",
        ROOT,
        "error: argument",
        "The engine refuses the value: look at tp_launch_extra_args, and at the engine's version.",
        r"error: argument (?P<option>[^:\n]{1,80}): ",
    ),
    _c(
        "validation",
        "settings",
        "vllm",
        ROOT,
        "validation error for",
        "The engine refuses a setting; the lines after this one say which.",
        r"[0-9]{1,3} validation errors? for \w{1,60}",
    ),
    _c("bad_rank_file", "settings", "unimem", ROOT, "the rank's file cannot be used", "The image's Python or the mounted directory is not as expected."),
    # --- killed -----------------------------------------------------------------------------------------------------------
    _c(
        "signal",
        "killed",
        "unimem",
        SYMPTOM,
        "was killed by signal",
        "Process {process} was ended by signal {signal}, and neither the kernel nor a watchdog says that it was them: "
        "somebody, or something, killed it on {node}.",
        r"status [0-9]{1,3}: (?P<process>[^\n]{1,60}) was killed by signal (?P<signal>1|2|9|15)$",
    ),
    _c(
        "crash",
        "engine",
        "unimem",
        SYMPTOM,
        "was killed by signal",
        "Process {process} crashed (signal {signal}): the lines of the rank's log before it may say in what; another version of the image may not.",
        r"status [0-9]{1,3}: (?P<process>[^\n]{1,60}) was killed by signal (?P<signal>[0-9]{1,3})",
    ),
    _c(
        "asked",
        "killed",
        "unimem",
        SYMPTOM,
        "asked to stop by signal",
        "Somebody stopped the container on {node} ('docker stop', a shutdown, a restart of Docker).",
        r"asked to stop by signal (?P<signal>[0-9]{1,3})",
    ),
    _c(
        "orphaned_core",
        "killed",
        "unimem",
        ROOT,
        "has no parent any more",
        "A process of the engine outlived its parent on {node}; it was ended with the rank.",
    ),
    _c(
        "died_worker",
        "killed",
        "vllm",
        SYMPTOM,
        "died unexpectedly",
        "A process of the engine ended without a word: 'journalctl -k' on {node}. " + _OTHER_RANK,
        r"(?:[Ww]orker proc|[Ee]ngine [Cc]ore proc|The actor)[^\n]{0,120}died unexpectedly",
    ),
    _c(
        "ray_worker", "killed", "ray", SYMPTOM, "A worker died or was killed", "A worker of Ray ended without a word: 'journalctl -k' on {node}. " + _OTHER_RANK
    ),
    # --- controller -------------------------------------------------------------------------------------------------------
    _c("sudo", "controller", "ansible", ROOT, "Missing sudo password", "Give --ask-become-pass, or let the user run sudo without one."),
    _c(
        "templating", "controller", "ansible", ROOT, "is undefined", "A variable that the run needs is not set.", r"'[A-Za-z_][A-Za-z0-9_.]{0,80}' is undefined"
    ),
    # --- what only follows ------------------------------------------------------------------------------------------------
    _c(
        "core_killed",
        "killed",
        "vllm",
        SYMPTOM,
        "Failed core proc(s)",
        "The engine's core was ended by signal {signal}: 'journalctl -k' on {node} says whether by the kernel.",
        r"Failed core proc\(s\): \{[^}\n]{0,200}: -(?P<signal>9|15)[,}]",
    ),
    _c("core_failed", "unknown", "vllm", ECHO, "Engine core initialization failed", "The cause stands above this line."),
    _c("core_dead", "unknown", "vllm", ECHO, "EngineDeadError", "The cause stands above this line."),
    _c("worker_failed", "unknown", "vllm", ECHO, "WorkerProc initialization failed", "The cause stands above this line."),
    _c("scheduler_dead", "unknown", "sglang", ECHO, "scheduler is dead", "The cause stands above this line."),
    _c("child_failed", "unknown", "sglang", ECHO, "Received sigquit from a child process", "The cause stands above this line."),
    _c("actor_died", "unknown", "ray", ECHO, "ActorDiedError", _OTHER_RANK),
)

_NEEDLES = [(cause.needle, cause) for cause in CAUSES]
_BY_NAME = {cause.name: cause for cause in CAUSES}

#: A line that a Python traceback ends with, of whatever exception.
EXCEPTION = re.compile(r"(?:^|[ \]])(?P<name>[A-Za-z_][A-Za-z0-9_.]{0,80}(?:Error|Exception|Failure))(?:: (?P<text>[^\n]{1,400})|$)")


def find(line: str) -> Match | None:
    """The first known message in a line; None when there is none. Linear in the line's length."""
    # Every line of every log comes here, and nearly none has any of the needles.
    for cause in [cause for needle, cause in _NEEDLES if needle in line]:
        if cause.pattern is None:
            return Match(cause, {})
        found = cause.pattern.search(line)
        if found is not None:
            return Match(cause, {name: value for name, value in found.groupdict().items() if value is not None})
    return None


def by_name(name: str) -> Cause | None:
    """The entry of that name."""
    return _BY_NAME.get(name)
