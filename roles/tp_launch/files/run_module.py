# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a Python module with an option whose value comes from the environment, so that no command line shows it.

Arguments: the option (``--api-key``), the environment variable, the module, then the module's own arguments.
For engines that take their API key from the command line only.
"""

from __future__ import annotations

import os
import runpy
import sys


def main() -> None:
    """Put the value where the module's argument parser looks, and become the module."""
    option, variable, module = sys.argv[1:4]
    # The new command line exists in this process only: what the kernel shows of it was fixed when it started. One word and the first one:
    # so a key that begins with a hyphen is no option, and a "--" among the others does not end the options before it.
    sys.argv = [module, f"{option}={os.environ[variable]}", *sys.argv[4:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
