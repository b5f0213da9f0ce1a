# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank whose arithmetic is the CPU's and whose memory is the simulated GB10's.

What vLLM 0.32's GPU worker does with memory on a unified-memory machine, in the same order and with the same words:

1. `torch.cuda.set_device` creates the CUDA context. It fails when MemFree is too low for it, whatever could be evicted.
2. The ranks meet (gloo here, NCCL there).
3. Free memory, which on a unified-memory machine is the host's MemAvailable, must reach utilization * total.
4. The weights are loaded.
5. The KV pool is what --kv-cache-memory-bytes says, or what utilization leaves.
6. The KV pool is allocated from the driver.

vLLM's CPU worker measures a NUMA node of the machine instead, which in the lab is the memory of both hosts together.
"""

from __future__ import annotations

import mmap
from types import SimpleNamespace

from vllm.v1.worker.cpu_worker import CPUWorker  # isort: skip  (first: it replaces functions of torch)

import gb10_cuda
import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.utils.mem_utils import format_gib
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.utils import request_memory

logger = init_logger(__name__)


def device_zeros(size: int) -> torch.Tensor:
    """`size` zero bytes of device memory.

    The driver holds the memory, outside of this process's resident set and cgroup, as on a GB10. The tensor that the
    CPU computes on is mapped and not populated: only the blocks that requests really use become resident beside it.
    """
    gb10_cuda.alloc(size)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.int8)


class GB10Worker(CPUWorker):
    """The CPU worker with the GPU worker's memory checks, asked from the driver."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        # Past CPUWorker.__init__, which binds to, and checks, the machine's first NUMA node.
        Worker.__init__(self, vllm_config, local_rank, rank, distributed_init_method, is_driver_worker=is_driver_worker)
        self.parallel_config.disable_custom_all_reduce = True

    def init_device(self) -> None:
        gb10_cuda.create_context()
        super().init_device()
        _, total = gb10_cuda.mem_get_info()
        self.free_at_start = gb10_cuda.mem_available()
        snapshot = SimpleNamespace(device_=torch.device("cuda:0"), total_memory=total, free_memory=self.free_at_start)
        self.requested_memory = request_memory(snapshot, self.cache_config)

    def determine_available_memory(self) -> int:
        if self._should_warm_up_model():
            self.model_runner.warming_up_model()
        explicit: int | None = self.cache_config.kv_cache_memory_bytes
        if explicit:
            logger.info(
                "Initial free memory %s GiB, reserved %s GiB memory for KV Cache as specified by kv_cache_memory_bytes config and "
                "skipped memory profiling. This does not respect the gpu_memory_utilization config.",
                format_gib(self.free_at_start),
                format_gib(explicit),
            )
            return explicit
        consumed = self.free_at_start - gb10_cuda.mem_available()
        available = self.requested_memory - consumed
        logger.info("Available KV cache memory: %s GiB", format_gib(available))
        return available
