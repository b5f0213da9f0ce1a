# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Makefile's tools: one subject a file, standard library only, run as ``python3 -m tools.NAME`` from the repository root."""
