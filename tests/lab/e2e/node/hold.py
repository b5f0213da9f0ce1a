#!/usr/bin/python3
# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process on a lab host that holds GPU memory of the simulated driver, under any name, and behaves badly where it is told to.

It says that it is ready to systemd (NOTIFY_SOCKET); with --daemon it goes into the background then and prints its pid.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, "/usr/lib/gb10-sim")

import gb10_cuda

PR_SET_NAME = 15
RENAMED = "UNIMEM_E2E_RENAMED"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="its title, and the first 15 characters of it as its name")
    parser.add_argument("--mib", type=int, default=0, help="beside the context; -1: no context either")
    parser.add_argument("--child", action="append", default=[], metavar="NAME:MIB", help="a process that it starts, and leaves behind when it is killed")
    parser.add_argument("--keep-zombies", action="store_true", help="its children are never waited for")
    parser.add_argument("--again", metavar="NAME:MIB", help="start that process, and again each time that it ends")
    parser.add_argument("--again-argv", metavar="COMMAND", help="the same with any command")
    parser.add_argument("--again-after", type=float, default=0.0, metavar="SECONDS", help="what passes until it is started again")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--end-after", type=float, default=0.0, metavar="SECONDS", help="what it takes to end after SIGTERM")
    parser.add_argument("--when-ended", type=int, metavar="PID", help="take the memory when that process has ended")
    parser.add_argument("--port", type=int, help="listen there as soon as it is ready")
    parser.add_argument("--daemon", action="store_true")
    parser.add_argument("--ready", type=int, default=-1, metavar="FD", help="write there when it is ready")
    return parser.parse_args()


def rename(name: str) -> None:
    """The title is argv[0], which needs an exec; the name is what the kernel keeps of it, as setproctitle leaves both."""
    if os.environ.pop(RENAMED, None) is None:
        os.environ[RENAMED] = "1"
        os.execv("/usr/bin/python3", [name, *sys.orig_argv[1:]])
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def start_child(what: str) -> subprocess.Popen[bytes]:
    """Start NAME:MIB; returns when it holds its memory."""
    name, _, mib = what.rpartition(":")
    reading, writing = os.pipe()
    child = subprocess.Popen(["/usr/bin/python3", __file__, "--name", name, "--mib", mib, "--ready", str(writing)], pass_fds=[writing])
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    return child


def say_ready(pipe: int) -> None:
    if pipe >= 0:
        os.write(pipe, b"+")
        os.close(pipe)
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)


def background() -> int:
    """Go on as a child; the parent prints its pid when it is ready, and ends."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        if os.read(reading, 1) != b"+":
            sys.exit(f"{sys.argv} ended before it was ready")
        print(pid, flush=True)
        os._exit(0)
    os.close(reading)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    return writing


def main() -> None:
    options = parse()
    rename(options.name)
    pipe = background() if options.daemon else options.ready
    if options.when_ended:
        say_ready(pipe)
        pipe = -1
        poller = select.poll()
        poller.register(os.pidfd_open(options.when_ended), select.POLLIN)
        poller.poll()
    if options.mib >= 0:
        gb10_cuda.create_context()
        if options.mib:
            gb10_cuda.alloc(options.mib << 20)

    def on_term(_number: int, _frame: object) -> None:
        time.sleep(options.end_after)
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_term else on_term)
    children = [start_child(what) for what in options.child]
    if options.port:
        socket.create_server(("127.0.0.1", options.port))
    say_ready(pipe)
    while options.again:
        start_child(options.again).wait()
        time.sleep(options.again_after)
    while options.again_argv:
        subprocess.run(options.again_argv.split(), check=False)
        time.sleep(options.again_after)
    while children and not options.keep_zombies:
        children.pop().wait()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
