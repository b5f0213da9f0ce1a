# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ollama import describe_loaded, parse_loaded, read_loaded

#: As Ollama 0.12 answers, shortened.
PS = {
    "models": [
        {"name": "qwen3:8b", "model": "qwen3:8b", "size_vram": 6654289920, "expires_at": "2318-03-11T09:59:16.854775807+01:00", "context_length": 4096},
        {"name": "phi4:latest", "expires_at": "2026-11-30T09:05:00Z"},
    ]
}
LOADED = [{"model": "qwen3:8b", "until": "2318-03-11T09:59:16.854775807+01:00"}, {"model": "phi4:latest", "until": "2026-11-30T09:05:00Z"}]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        data = json.dumps(PS if self.path == "/api/ps" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_values: object) -> None:
        return


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield int(server.server_address[1])
    server.shutdown()
    server.server_close()


def test_what_is_loaded_and_until_when(port: int) -> None:
    assert read_loaded([port], 10.0) == LOADED
    assert read_loaded([]) == []


def test_who_does_not_answer_has_nothing_and_costs_little() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        assert read_loaded([int(silent.getsockname()[1])], 0.3) == []
        assert time.monotonic() - begin < 5


def test_for_people() -> None:
    assert describe_loaded(LOADED) == "qwen3:8b (kept for good), phi4:latest (kept until 2026-11-30T09:05:00Z)"
    assert describe_loaded([{"model": "x", "until": "soon"}]) == "x (for how long is not known)"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"models": null}', '{"models": 5}', '{"models": [5]}', '{"models": [{}]}', '{"models": [{"name": 5}]}',
     '{"models": [{"name": "\\u001b[2J"}]}', '{"models": {"name": "x"}}'],
)  # fmt: skip
def test_what_makes_no_sense_is_left_out(text: str) -> None:
    assert parse_loaded(text) == []


def test_another_type_of_the_end_is_none() -> None:
    assert parse_loaded('{"models": [{"name": "x", "expires_at": 5}]}') == [{"model": "x", "until": ""}]
