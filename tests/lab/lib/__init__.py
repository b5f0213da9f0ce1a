# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the lab: one subject a file. Python 3.11, standard library only."""
