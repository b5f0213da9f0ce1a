# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for CUDA's context and device memory on a simulated GB10.

The driver (gb10-simd) holds the memory; it belongs to the process that asked and is released when that process ends.
Standard library only, Python 3.9+. The errors use torch's classes and words where torch is already imported, so that an
engine on the simulated driver fails as it would on a GB10.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any
from urllib.parse import quote, unquote

__all__ = ["Allocation", "alloc", "create_context", "destroy_context", "is_available", "mem_available", "mem_get_info"]

# The lines that torch adds to an error of CUDA.
_SEARCH_HINT = "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
_ASYNC_HINT = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


class _DriverError(Exception):
    """The driver answered with a CUDA error code."""

    def __init__(self, code: int, name: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.name = name


def _accelerator_error(error: _DriverError) -> Exception:
    hint = _SEARCH_HINT if error.name == "CUDA_ERROR_OUT_OF_MEMORY" else ""
    return _torch_class("AcceleratorError")(f"CUDA error: {error}\n{hint}{_ASYNC_HINT}")


def _torch_class(*names: str) -> type[Exception]:
    """The first of torch's exception classes that exists, else RuntimeError (which all of them derive from)."""
    torch = sys.modules.get("torch")
    for name in names:
        found: Any = torch
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, RuntimeError):
            return found
    return RuntimeError


def _socket_path() -> str:
    return os.path.join(os.environ.get("GB10_SIM_DIR", "/run/gb10-sim"), "driver.sock")


def _request(verb: str, **arguments: object) -> dict[str, str]:
    """Send one request on a connection of its own (so that the driver sees this process, also after a fork)."""
    line = " ".join([verb, *(f"{key}={quote(str(value), safe='')}" for key, value in arguments.items())])
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(_socket_path())
            connection.sendall(line.encode("ascii") + b"\n")
            with connection.makefile("r", encoding="ascii", newline="\n") as answers:
                answer = answers.readline()
    except OSError as error:
        raise RuntimeError(f"No CUDA GPUs are available ({_socket_path()}: {error.strerror})") from error
    status, *pairs = answer.split()
    values = {key: unquote(value) for key, _, value in (pair.partition("=") for pair in pairs)}
    if status != "ok":
        raise _DriverError(int(values.get("cuda", 999)), values.get("name", "CUDA_ERROR_UNKNOWN"), values.get("text", "unknown error"))
    return values


def _meminfo() -> dict[str, str]:
    try:
        return _request("meminfo")
    except _DriverError as error:
        raise _accelerator_error(error) from error


def is_available() -> bool:
    """Whether the driver answers and has a device; creates nothing."""
    try:
        _meminfo()
    except RuntimeError:
        return False
    return True


def create_context(device: int = 0) -> int:
    """Create this process's context on the device and return the bytes that it holds; what torch.cuda.set_device does.

    Raises torch.AcceleratorError (RuntimeError without it) "CUDA error: out of memory" when the host's MemFree is too low.
    """
    try:
        return int(_request("context", device=device)["bytes"])
    except _DriverError as error:
        raise _accelerator_error(error) from error


class Allocation:
    """Device memory of this process; freed by free() or when the process ends."""

    def __init__(self, handle: int, size: int) -> None:
        self.handle = handle
        self.size = size

    def free(self) -> None:
        """Give the memory back to the driver."""
        try:
            _request("free", id=self.handle)
        except _DriverError as error:
            raise _accelerator_error(error) from error


def alloc(size: int, device: int = 0) -> Allocation:
    """Allocate device memory (bytes, rounded up to 2 MiB); the process needs a context first.

    Raises torch.OutOfMemoryError (RuntimeError without it) when the host cannot give that much.
    """
    try:
        answer = _request("alloc", device=device, bytes=size)
    except _DriverError as error:
        if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
            raise _accelerator_error(error) from error
        free, total = mem_get_info()
        raise _torch_class("OutOfMemoryError", "cuda.OutOfMemoryError")(
            f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU {device} has a total capacity of {total / 2**30:.2f} GiB "
            f"of which {free / 2**20:.2f} MiB is free."
        ) from error
    return Allocation(int(answer["id"]), int(answer["bytes"]))


def mem_get_info() -> tuple[int, int]:
    """(free, total) in bytes as cudaMemGetInfo has it on a GB10: the host's MemFree and MemTotal."""
    answer = _meminfo()
    return int(answer["free"]), int(answer["total"])


def mem_available() -> int:
    """The host's MemAvailable in bytes, as the driver sees it."""
    return int(_meminfo()["available"])


def destroy_context() -> None:
    """Release this process's context and all its allocations now."""
    try:
        _request("destroy")
    except _DriverError as error:
        raise _accelerator_error(error) from error
