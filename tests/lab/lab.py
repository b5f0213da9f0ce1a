#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two simulated DGX Sparks in one Linux machine: lab.py up | down | status | ssh NAME [COMMAND...] | fill-cache | seed.

Runs as root with a plain Python 3.11 or newer; README.md beside it says what it makes and how.
"""

import sys

if sys.version_info < (3, 11):
    sys.exit("The lab needs Python 3.11 or newer; this is {}.{}. Run it with a newer python3.".format(*sys.version_info))

from lib.main import main  # noqa: E402  (after the version is known)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
