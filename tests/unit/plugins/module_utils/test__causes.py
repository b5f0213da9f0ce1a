# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each known message in the words of the program that writes it, as people report them, and the lines beside them that mean nothing."""

from __future__ import annotations

import re

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _causes
from ansible_collections.unimem.dgx_spark.plugins.module_utils._causes import CAUSES, CLASSES, ECHO, ROOT, SYMPTOM, find

#: (line, class, name)
LINES = [
    # memory: CUDA and the engines' checks
    ("torch.AcceleratorError: CUDA error: out of memory", "memory", "cuda_context"),
    ("RuntimeError: CUDA error: out of memory", "memory", "cuda_context"),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU 0 has a total capacity of 119.70 GiB of which 1.21 GiB is free.",
        "memory",
        "cuda_allocation",
    ),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory", "memory", "cuda_allocation"),
    ("RuntimeError: CUDA driver error: out of memory", "memory", "cuda_driver"),
    ("RuntimeError: cudaErrorMemoryAllocation: out of memory in cudaMemGetInfo", "memory", "cuda_allocation_failed"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory", "cublas_allocation"),
    ("spark-02:91:91 [0] transport/net.cc:233 NCCL WARN Cuda failure 2 'out of memory'", "memory", "nccl_memory"),
    (
        (
            "ValueError: Free memory on device cuda:0 (55.87/119.56 GiB) on startup is less than desired GPU memory utilization (0.5, 59.78 GiB). Decrease GPU "
            "memory utilization or reduce GPU memory used by other processes."
        ),
        "memory",
        "vllm_start_check",
    ),
    (
        (
            "ValueError: To serve at least one request with the models's max seq len (262144), (24.00 GiB KV cache is needed, which is larger than the "
            "available KV cache memory (3.77 GiB). Based on the available memory, the estimated maximum model length is 34816."
        ),
        "memory",
        "vllm_kv_cache",
    ),
    (
        (
            "ValueError: To serve at least one request with the models's max seq len (262144), 28.00 GiB KV cache is needed, which is larger than the available"
            " KV cache memory (13.69 GiB). The estimated maximum model length is 128128."
        ),
        "memory",
        "vllm_kv_cache",
    ),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", "memory", "vllm_no_blocks"),
    (
        (
            "AssertionError: Error in memory profiling. Initial free memory 87.79 GiB, current free memory 95.02 GiB. This happens when other processes sharing"
            " the same container release GPU memory while vLLM is profiling during initialization."
        ),
        "memory",
        "vllm_profiling",
    ),
    (
        (
            "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=19.2269287109375, "
            "local_gpu_memory=30.54656982421875, local_gpu_memory * 0.9=27.491912841796875"
        ),
        "memory",
        "sglang_unbalanced",
    ),
    ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "memory", "sglang_unbalanced"),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. mem_fraction_static=0.6", "memory", "sglang_not_enough"),
    (
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 121.69 GiB",
        "memory",
        "cuda_allocation",
    ),
    (
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory. Memory on the node (IP: 192.168.100.10, ID: 6f) where the"
            " task (actor ID: 2a, name=RayWorkerWrapper.__init__, pid=511) was running was 113.76GB / 119.70GB (0.950345), which exceeds the memory usage"
            " threshold of 0.95."
        ),
        "memory",
        "ray_memory",
    ),
    ("spark-01:88:88 [0] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-9hL (size 9637888)", "memory", "shm_full"),
    ("spark-01:88:90 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "memory", "memlock"),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1",
        "memory",
        "host_allocator",
    ),
    ("OSError: [Errno 12] Cannot allocate memory", "memory", "errno_12"),
    # memory: the kernel and watchdogs
    (
        "kernel: Out of memory: Killed process 40721 (VLLM::Worker_TP) total-vm:184324560kB, anon-rss:5120304kB, file-rss:73400kB, shmem-rss:64600000kB",
        "memory",
        "kernel_oom",
    ),
    ("kernel: Memory cgroup out of memory: Killed process 991 (python3) total-vm:98320kB, anon-rss:65536kB", "memory", "kernel_cgroup_oom"),
    (
        (
            "kernel: NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ "
            "mem_desc.c:1359"
        ),
        "memory",
        "driver_no_memory",
    ),
    ('earlyoom[700]: sending SIGTERM to process 40721 uid 0 "VLLM::Worker_TP": badness 1253, VmRSS 5120 MiB', "memory", "earlyoom"),
    ("systemd-oomd[513]: Killed /system.slice/docker-4f1.scope due to memory pressure for /system.slice being 61.20% > 60.00%", "memory", "systemd_oomd"),
    # port
    (
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29501, useIpv6: false, code: -98,"
            " name: EADDRINUSE, message: address already in use"
        ),
        "port",
        "port_listen",
    ),
    ("OSError: [Errno 98] Address already in use", "port", "errno_98"),
    ("ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use", "port", "port_bind"),
    ("2026-11-30T09:00:00Z ending with status 78: cannot listen on 192.168.200.12 port 29400: Address already in use", "port", "rank_cannot_listen"),
    ("ValueError: Ray component gcs_server is trying to use a port number 6379 that is used by other components.", "port", "ray_port"),
    ("ConnectionError: Ray is trying to start at 192.168.100.10:6379, but is already running at 192.168.100.10:6379.", "port", "ray_running"),
    ("docker: Error response from daemon: Bind for 0.0.0.0:8000 failed: port is already allocated.", "port", "docker_port"),
    ("On spark-02 port 8000 (the endpoint) is taken: LISTEN on 0.0.0.0:8000: python3 (4711). Stop that, or choose another port.", "port", "port_taken_before"),
    # image
    ("RuntimeError: Version mismatch: The cluster was started with:", "image", "ray_versions"),
    ("2026-11-30T09:00:00Z ending with status 127: ray cannot be started: No such file or directory: ray", "image", "no_program"),
    ("exec /usr/bin/python3: exec format error", "image", "exec_format"),
    ("no matching manifest for linux/arm64/v8 in the manifest list entries", "image", "no_platform"),
    ("docker: Error response from daemon: No such image: unimem/vllm-spark:0123456789ab", "image", "no_image"),
    ("spark-02 does not have the image unimem/vllm-spark:0123, and it is never pulled at a launch.", "image", "no_image_here"),
    ("Error response from daemon: manifest for eugr/spark-vllm:nope not found: manifest unknown: manifest unknown", "image", "manifest_unknown"),
    ("Error response from daemon: pull access denied for unimem/x, repository does not exist or may require 'docker login'", "image", "pull_denied"),
    ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", "image", "no_kernels"),
    ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "image", "ptxas"),
    ("ModuleNotFoundError: No module named 'ray'", "image", "no_module"),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "image", "no_library"),
    # model
    (
        "ValueError: The checkpoint you are trying to load has model type `qwen3_5_moe` but Transformers does not recognize this architecture.",
        "model",
        "transformers_unknown",
    ),
    (
        "ValueError: Model architectures ['Qwen3_5MoeForConditionalGeneration'] are not supported for now. Supported architectures: dict_keys([",
        "model",
        "not_supported",
    ),
    ("ValueError: Total number of attention heads (64) must be divisible by tensor parallel size (3).", "model", "heads"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "model", "truncated_weights"),
    ("RuntimeError: Cannot find any model weights with `/models/x`", "model", "no_weights"),
    ("OSError: /models/x does not appear to have a file named config.json.", "model", "no_config"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/models/x/model-00007-of-00039.safetensors'", "model", "no_weight_file"),
    # driver
    ("Failed to initialize NVML: Driver/library version mismatch", "driver", "driver_mismatch"),
    ("Failed to initialize NVML: Unknown Error", "driver", "nvml_unknown"),
    ("RuntimeError: No CUDA GPUs are available", "driver", "no_gpus"),
    ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver", "driver", "no_driver"),
    ("RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`", "driver", "no_device_type"),
    ("CUDA error: CUDA driver version is insufficient for CUDA runtime version", "driver", "old_driver"),
    ('docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].', "driver", "no_gpu_runtime"),
    ("nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown", "driver", "container_cli"),
    ("failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all", "driver", "cdi"),
    ("kernel: NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "driver", "xid"),
    ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "driver", "illegal_access"),
    ("ValueError: Current node has no GPU available. current_node_resource={'accelerator_type:GB10': 1.0, 'CPU': 20.0}", "driver", "ray_no_gpu"),
    # disk
    ("OSError: [Errno 28] No space left on device", "disk", "disk_full"),
    ('rsync: [receiver] write failed on "/models/x": No space left on device (28)', "disk", "disk_full"),
    ("docker: write /var/lib/docker/tmp/x: no space left on device.", "disk", "disk_full"),
    ("kernel: blk_update_request: I/O error, dev nvme0n1, sector 12345", "disk", "io_error"),
    # docker
    ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", "docker", "no_daemon"),
    ("Error connecting: Error while fetching server API version: ('Connection aborted.', FileNotFoundError(2, 'No such file'))", "docker", "no_daemon_api"),
    (
        "OCI runtime create failed: runc create failed: unable to start container process: error running hook: [Errno 30] Read-only file system: '/x'",
        "docker",
        "oci",
    ),
    ("OSError: [Errno 30] Read-only file system: '/data/x'", "disk", "read_only"),
    ('Conflict. The container name "/unimem-default-rank0" is already in use by container "4f1"', "docker", "name_conflict"),
    ("OCI runtime create failed: container_linux.go:380: error setting rlimits: error setting rlimit type 8: operation not permitted", "docker", "rlimit"),
    ('error gathering device information while adding custom device "/dev/infiniband": no such file or directory', "docker", "no_device"),
    # network
    ("NCCL WARN socketStartConnect: Connect to 127.0.1.1<44321> failed : Connection refused", "network", "loopback"),
    ("NCCL WARN Bootstrap : no socket interface found", "network", "no_socket_interface"),
    ("RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find interface for: enp1s0f9", "network", "gloo_interface"),
    ("OSError: [Errno 99] Cannot assign requested address", "network", "errno_99"),
    ("RuntimeError: Every node should have a unique IP address. Got 1 nodes with node ids ['a'] and 2 unique IP addresses", "network", "unique_address"),
    ("NCCL WARN NET/IB: Got completion from peer 192.168.100.11<4791> with status=12 opcode=0 len=0 vendor err 129", "network", "rdma_retry"),
    ("kernel: mlx5_core 0000:01:00.0 enp1s0f0np0: Link down", "network", "link_down"),
    ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.", "network", "store_clients"),
    ("DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (192.168.100.10, 29501).", "network", "store_timeout"),
    ("RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error", "network", "gloo_mesh"),
    ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [192.168.200.13]:31243", "network", "gloo_closed"),
    ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", "network", "nccl_remote"),
    (
        (
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, unhandled system error (run"
            " with NCCL_DEBUG=INFO for details), NCCL version 2.27.7"
        ),
        "network",
        "nccl_system",
    ),
    ("ConnectionError: Failed to connect to GCS at address 192.168.100.10:6379", "network", "gcs"),
    ("spark@192.168.100.11: Permission denied (publickey,password).", "network", "ssh_key"),
    ("Host key verification failed.", "network", "ssh_host_key"),
    ("Connection timed out during banner exchange", "network", "ssh_banner"),
    ("kex_exchange_identification: Connection closed by remote host", "network", "ssh_kex"),
    ("ssh: connect to host 192.168.200.13 port 22: No route to host", "network", "ssh_refused"),
    ("ssh: Could not resolve hostname spark-02: Name or service not known", "network", "ssh_name"),
    ("rsync error: error in rsync protocol data stream (code 12) at io.c(232) [sender=3.2.7]", "network", "rsync_code"),
    ("rsync error: timeout in data send/receive (code 30) at io.c(205)", "network", "rsync_code"),
    ("2026-11-30T09:00:00Z ending with status 71: rank 1 is lost: nothing was heard from it for 30 s", "network", "rank_lost"),
    ("unimem.dgx_spark.fabric_of: no subnet is shared by all nodes over a usable link. spark-01 has enp1s0f0np0 192.168.200.12/24", "network", "no_fabric"),
    ("the Ray cluster at 192.168.200.12:6379 has nodes that are not of this launch: 192.168.200.99", "network", "foreign_ray"),
    # timeout
    ("2026-11-30T09:00:00Z ending with status 72: the engine was not ready within the time allowed", "timeout", "not_ready"),
    ("TimeoutError: RPC call to execute_model timed out.", "timeout", "rpc"),
    ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, Timeout(ms)=600000)", "timeout", "nccl_watchdog"),
    ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.", "timeout", "nccl_heartbeat"),
    ("RuntimeError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds.", "timeout", "placement"),
    # settings, killed, controller
    ("vllm: error: unrecognized arguments: --no-such-option", "settings", "unrecognized"),
    (
        "(EngineCore pid=315) ERROR 12-01 04:02:01 [core.py:1510] AssertionError: Workers disagree on supported KV cache layouts: [['LBNHC'], ['LBHNC']].",
        "settings",
        "stages_differ",
    ),
    ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'int3'", "settings", "invalid_argument"),
    ("2026-11-30T09:00:00Z ending with status 137: engine was killed by signal 9", "killed", "signal"),
    ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}", "killed", "core_killed"),
    ("ERROR Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", "killed", "died_worker"),
    ("2026-11-30T09:00:00Z ending with status 143: asked to stop by signal 15", "killed", "asked"),
    ("2026-11-30T09:00:00Z ending with status 139: engine was killed by signal 11", "engine", "crash"),
    ("Missing sudo password", "controller", "sudo"),
]

#: Lines of healthy starts: none of them is a cause.
HARMLESS = [
    "INFO 11-30 09:00:00 [gpu_worker.py:298] Available KV cache memory: 10.23 GiB",
    "INFO 11-30 09:00:00 [kv_cache_utils.py:1087] GPU KV cache size: 838,860 tokens",
    "Loading safetensors checkpoint shards:  14% Completed | 1/7 [00:02<00:13,  2.24s/it]",
    '127.0.0.1:51234 - "GET /health HTTP/1.1" 200 OK',
    "Python patch version mismatch: The cluster was started with:",
    "NCCL INFO Bootstrap : Using enp1s0f0np0:192.168.200.12<0>",
    "2026-11-30T09:00:00Z memory: 101376 MiB available, 3379 MiB free, 97280 MiB cached",
    "2026-11-30T09:00:00Z all ranks have met",
    "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.",
    "WARNING: Port 8001 is used by another process, trying 8002",
    "No such file or directory: '/root/.cache/vllm/torch_compile_cache'",
    "INFO: Connected to 127.0.0.1:44321",
]


@pytest.mark.parametrize(("line", "kind", "name"), LINES, ids=[f"{name}-{number}" for number, (_line, _kind, name) in enumerate(LINES)])
def test_a_known_message_is_recognised(line: str, kind: str, name: str) -> None:
    match = find(line)
    assert match is not None, line
    assert (match.cause.kind, match.cause.name) == (kind, name)


@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_line_is_no_cause(line: str) -> None:
    assert find(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
        "Rank 0 scheduler is dead. Please check if there are relevant logs.",
        "Received sigquit from a child process. It usually means the child failed.",
    ],
)
def test_what_only_follows_is_an_echo(line: str) -> None:
    match = find(line)
    assert match is not None and match.cause.level == ECHO


def test_figures_are_read_out_of_the_message() -> None:
    start = find("Free memory on device cuda:0 (55.87/119.56 GiB) on startup is less than desired GPU memory utilization (0.9, 107.60 GiB). Decrease")
    assert start is not None and start.fields == {"seen": "55.87", "total": "119.56", "utilization": "0.9", "asked": "107.60"}
    cache = find(LINES[9][0])
    assert cache is not None and cache.fields == {"length": "262144", "asked": "24.00", "seen": "3.77", "estimated": "34816"}
    unbalanced = find(LINES[13][0])
    assert unbalanced is not None and unbalanced.fields["local"].startswith("30.5")


def test_the_table_is_well_formed() -> None:
    names = [cause.name for cause in CAUSES]
    assert len(set(names)) == len(names)
    figures = {"node", "interface", "free", "available", "cache", "holders", "disks", "progress"}
    for cause in CAUSES:
        assert cause.kind in CLASSES and cause.level in (ROOT, SYMPTOM, ECHO)
        assert cause.needle and cause.remedy.endswith("."), cause.name
        groups = set(cause.pattern.groupindex) if cause.pattern else set()
        for field in re.findall(r"\{([a-z_]+)\}", cause.remedy):
            assert field in figures | groups, f"{cause.name} speaks of {field}, which nobody fills in"


def test_every_entry_can_be_reached() -> None:
    """An entry whose needle is in a line must not always be hidden by an earlier one: most are shown above, the others by their needle."""
    shown = {name for _line, _kind, name in LINES}
    for cause in CAUSES:
        if cause.name not in shown and cause.pattern is None:
            match = find(cause.needle)
            assert match is not None and match.cause.name == cause.name


def test_entries_are_found_by_name() -> None:
    assert _causes.by_name("kernel_oom") is not None and _causes.by_name("nothing") is None
