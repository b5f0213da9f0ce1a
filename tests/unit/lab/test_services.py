# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on the lab's second Spark: the embeddings server and the forgotten llama-server, on the simulated driver."""

from __future__ import annotations

import http.client
import json
import math
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gb10_driver import MIB, Driver, running_driver, wait_until

from ansible_collections.unimem.dgx_spark.tests.unit.ports import free_port

MODEL = "BAAI/bge-m3"


def ask(port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


def answers(port: int) -> bool:
    try:
        return ask(port, "GET", "/health")[0] == 200
    except OSError:
        return False


def vectors(port: int, *texts: str) -> list[list[float]]:
    status, answer = ask(port, "POST", "/v1/embeddings", {"model": MODEL, "input": list(texts)})
    assert status == 200, answer
    assert [entry["index"] for entry in answer["data"]] == list(range(len(texts)))
    return [entry["embedding"] for entry in answer["data"]]


def cosine(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def pool(directory: Path, *, free: int = 5000 * MIB, available: int = 5000 * MIB) -> Path:
    path = directory / "meminfo"
    path.write_text(f"MemTotal: {1000 * MIB // 1024} kB\nMemFree: {free // 1024} kB\nMemAvailable: {available // 1024} kB\n")
    return path


class Server:
    def __init__(self, driver: Driver, program: Path, *arguments: str) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [program, *arguments, "--port", str(self.port)], env=driver.environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )

    def end(self) -> tuple[int, str]:
        self.process.terminate()
        _output, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors


@pytest.fixture
def host(driver_binaries: Path, short_directory: Path) -> Iterator[Driver]:
    """A driver on a host of 1000 MiB."""
    with running_driver(driver_binaries, short_directory, "--meminfo", str(pool(short_directory))) as driver:
        yield driver


@pytest.fixture
def embeddings(host: Driver, service_binaries: Path) -> Iterator[Server]:
    server = Server(host, service_binaries / "vllm", "serve", MODEL, "--host", "127.0.0.1", "--gpu-memory-utilization", "0.1")
    wait_until(lambda: answers(server.port) or server.process.poll() is not None, "the server answers")
    assert server.process.poll() is None
    yield server
    server.end()


def test_vectors_are_computed(embeddings: Server) -> None:
    cats, kittens, stocks, same = vectors(
        embeddings.port, "The cat sat on the warm mat", "A cat sits on a warm mat", "Shares fell sharply on Monday", "the CAT sat on the warm mat"
    )
    assert len(cats) == 384
    assert math.isclose(cosine(cats, cats), 1, abs_tol=1e-5)
    assert cats == same
    assert cosine(cats, kittens) > 0.4 > 0.2 > abs(cosine(cats, stocks))
    assert vectors(embeddings.port, "The cat sat on the warm mat")[0] == cats
    assert vectors(embeddings.port, "")[0] == [0.0] * 384


def test_one_text_usage_and_unicode(embeddings: Server) -> None:
    status, answer = ask(
        embeddings.port, "POST", "/v1/embeddings", b'{"input": "Gr\\u00fc\\u00dfe \\ud83d\\ude00 aus Z\\u00fcrich", "extra": [1, {"a": null}]}'
    )
    assert status == 200
    assert answer["object"] == "list"
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["data"][0]["embedding"] == vectors(embeddings.port, "Grüße 😀 aus Zürich")[0]


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b'{"input": "a"} x', 400, None),
        (b'{"input": "a",}', 400, None),
        (b'{"input": ["a",]}', 400, None),
        (b'{"input": "\\u00"}', 400, None),
        (b"[" * 100000, 400, None),
        (b'{"input": ' + b"[" * 100000, 400, None),
        (b"{}", 400, "input"),
        (b'{"input": []}', 400, "input"),
        (b'{"input": 7}', 400, "input"),
        (b'{"input": ["a", 7]}', 400, "input"),
        (b'{"input": [[1, 2]]}', 400, "input"),
        (b'{"input": "a", "model": "gpt-4"}', 404, "model"),
    ],
)
def test_bad_requests(embeddings: Server, body: bytes, status: int, where: str | None) -> None:
    got, answer = ask(embeddings.port, "POST", "/v1/embeddings", body)
    assert got == status
    assert (answer["error"]["code"], answer["error"]["param"]) == (status, where)
    assert answers(embeddings.port)


def test_other_paths(embeddings: Server) -> None:
    assert ask(embeddings.port, "GET", "/v1/models")[1]["data"][0]["id"] == MODEL
    assert ask(embeddings.port, "GET", "/v1/embeddings")[0] == 405
    assert ask(embeddings.port, "POST", "/v1/chat/completions", {})[0] == 404
    assert ask(embeddings.port, "GET", "/health?x=1")[0] == 200
    assert ask(embeddings.port, "POST", "/v1/embeddings", b"", {"Content-Length": "99999999"})[0] == 413
    assert ask(embeddings.port, "GET", "/health", None, {"X-Long": "a" * 20000})[0] == 431


def test_many_clients_and_kept_connections(embeddings: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", embeddings.port, timeout=120)
    for _round in range(3):
        connection.request("POST", "/v1/embeddings", json.dumps({"input": "again"}))
        assert len(json.loads(connection.getresponse().read())["data"][0]["embedding"]) == 384
    connection.close()
    with ThreadPoolExecutor(16) as clients:
        results = list(clients.map(lambda number: vectors(embeddings.port, f"text {number % 4}")[0], range(64)))
    assert len({tuple(result) for result in results}) == 4


def test_engine_process_holds_the_memory(embeddings: Server, host: Driver) -> None:
    (listed,) = host.nvml("p.nvmlDeviceGetComputeRunningProcesses(gpu)")
    assert listed["usedGpuMemory"] == 100 * MIB
    assert listed["pid"] != embeddings.process.pid
    assert host.nvml(f"p.nvmlSystemGetProcessName({listed['pid']})") == "VLLM::EngineCore"
    statm = Path(f"/proc/{listed['pid']}/statm").read_text().split()
    assert int(statm[1]) * 4096 < 16 * MIB


def test_ends_as_vllm_does(embeddings: Server, host: Driver) -> None:
    assert embeddings.end()[0] == 143
    wait_until(lambda: host.status()["allocations"] == [], "the memory is back")


def test_dies_with_its_engine(embeddings: Server, host: Driver) -> None:
    (engine,) = {line["pid"] for line in host.status()["allocations"]}
    subprocess.run(["kill", "-KILL", str(engine)], check=True)
    assert embeddings.process.wait(10) == 1
    wait_until(lambda: host.status()["allocations"] == [], "the memory is back")


def test_engine_dies_with_its_server(embeddings: Server, host: Driver) -> None:
    embeddings.process.send_signal(signal.SIGKILL)
    wait_until(lambda: host.status()["allocations"] == [], "the memory is back")


@pytest.mark.parametrize(
    ("free", "available", "words"),
    [
        (15, 900, "CUDA error: out of memory"),
        (50, 90, "Free memory on device cuda:0 (0.09/0.98 GiB) on startup is less than desired GPU memory utilization (0.1, 0.10 GiB)"),
    ],
)
def test_does_not_start_without_memory(host: Driver, service_binaries: Path, free: int, available: int, words: str) -> None:
    pool(host.directory, free=free * MIB, available=available * MIB)
    server = Server(host, service_binaries / "vllm", "serve", MODEL, "--gpu-memory-utilization", "0.1")
    _output, errors = server.process.communicate(timeout=120)
    assert server.process.returncode == 1
    assert words in errors
    assert "RuntimeError: Engine core initialization failed." in errors


def test_forgotten_llama_server(host: Driver, service_binaries: Path) -> None:
    model = host.directory / "model.gguf"
    with model.open("wb") as file:
        file.truncate(56 * MIB)
    server = Server(host, service_binaries / "llama-server", "-m", str(model), "-ngl", "99")
    wait_until(lambda: answers(server.port), "it answers")
    (listed,) = host.nvml("p.nvmlDeviceGetComputeRunningProcesses(gpu)")
    assert (listed["pid"], listed["usedGpuMemory"]) == (server.process.pid, 64 * MIB)
    assert server.end()[0] == -signal.SIGTERM
    wait_until(lambda: host.status()["allocations"] == [], "the memory is back")
