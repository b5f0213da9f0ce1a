# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for `python3 -m sglang.launch_server` on two nodes: SGLang itself cannot be imported without a GPU.

What it has of SGLang's is what the role relies on: rank 0 answers /health with 503 until it is ready and serves; the server of another
rank says 200 from the beginning, whatever becomes of its scheduler; a scheduler that dies takes its own main process with it and nobody
else's, the other rank waits for it for ever. It takes a CUDA context and a KV pool of STANDIN_KV bytes from the simulated driver.

STANDIN_FAULT=RANK:load:ACTION makes a rank fail: actions are stay (for ever) and raise.
"""

from __future__ import annotations

import argparse
import ctypes
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time

import gb10_cuda

POOL_TOKENS = 61440


def say(text: str) -> None:
    sys.stderr.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n")
    sys.stderr.flush()


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sglang.launch_server", allow_abbrev=False)
    for name in ("model-path", "served-model-name", "dist-init-addr", "host", "kv-cache-dtype"):
        parser.add_argument("--" + name, default="")
    for name in ("tp-size", "nnodes"):
        parser.add_argument("--" + name, type=int, default=1)
    for name in ("node-rank", "port", "context-length", "max-running-requests", "chunked-prefill-size"):
        parser.add_argument("--" + name, type=int, default=0)
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--disable-cuda-graph", action="store_true")
    return parser.parse_args(words)


# --- the scheduler: it has the GPU ----------------------------------------------------------------------------------------


def meet(options: argparse.Namespace) -> socket.socket:
    """The other rank, over the address of rank 0."""
    host, _, port = options.dist_init_addr.rpartition(":")
    if options.node_rank == 0:
        with socket.create_server((host, int(port))) as listener:
            return listener.accept()[0]
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=2)
        except OSError:
            time.sleep(0.2)


def schedule(options: argparse.Namespace) -> None:
    rank = options.node_rank
    ctypes.CDLL(None).prctl(15, f"sglang::schedul{rank}".encode()[:15])
    say(f"[TP{rank}] Init torch distributed begin.")
    gb10_cuda.create_context()
    peer = meet(options)
    say(f"[TP{rank}] Load weight begin. avail mem=4.00 GB")
    wanted, _, action = os.environ.get("STANDIN_FAULT", "").partition(":load:")
    if wanted == str(rank) and action == "stay":
        time.sleep(3600)
    if wanted == str(rank) and action == "raise":
        raise RuntimeError("shape '[2, 3]' is invalid for input of size 5")
    time.sleep(1)
    say(f"[TP{rank}] Load weight end. type=TinyForCausalLM, dtype=torch.bfloat16, avail mem=3.90 GB, mem usage=0.10 GB.")
    gb10_cuda.alloc(int(os.environ.get("STANDIN_KV", "0")) or 2**28)
    say(f"[TP{rank}] KV Cache is allocated. #tokens: {POOL_TOKENS}, K size: 0.10 GB, V size: 0.10 GB")
    print("ready", flush=True)
    peer.settimeout(None)
    if rank > 0:
        while peer.recv(100):
            peer.sendall(b"token\n")
        time.sleep(3600)  # as a collective operation does that the other rank never joins
    for _line in sys.stdin:
        peer.sendall(b"token?\n")
        print("Paris." if peer.recv(100) else "", flush=True)


# --- the main process -----------------------------------------------------------------------------------------------------


def serve(options: argparse.Namespace) -> None:
    words = [sys.executable, "-m", "sglang.launch_server", "--standin=scheduler", *sys.argv[1:]]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    questions, answers = child.stdin, child.stdout
    ready, lock = threading.Event(), threading.Lock()

    def watch() -> None:
        child.wait()
        say("Received sigquit from a child process. It usually means the child failed.")
        os._exit(131)

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, status: int, value: object) -> None:
            body = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if options.node_rank > 0:
                self.answer(200, None)  # the dummy server
            elif not ready.is_set():
                self.answer(503, None)
            elif self.path == "/get_server_info":
                self.answer(200, {"max_total_num_tokens": POOL_TOKENS})
            elif self.path == "/v1/models":
                self.answer(200, {"data": [{"id": options.served_model_name}]})
            else:
                self.answer(200 if self.token() else 503, None)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            text = self.token() if ready.is_set() else ""
            self.answer(200 if text else 500, {"choices": [{"text": text}], "usage": {"completion_tokens": 1}})

        @staticmethod
        def token() -> str:
            with lock:
                questions.write("token\n")
                questions.flush()
                return answers.readline().strip()

        def log_message(self, *_values: object) -> None:
            return

    threading.Thread(target=watch, daemon=True).start()
    server = http.server.ThreadingHTTPServer((options.host, options.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if answers.readline().strip() == "ready" and options.node_rank == 0:
        say("Application startup complete.")
        ready.set()
        say("The server is fired up and ready to roll!")
    child.wait()
    time.sleep(3600)  # until the watcher ends it


def main() -> None:
    if sys.argv[1:2] == ["--standin=scheduler"]:
        del sys.argv[1]
        schedule(arguments(sys.argv[1:]))
    else:
        serve(arguments(sys.argv[1:]))


if __name__ == "__main__":
    main()
