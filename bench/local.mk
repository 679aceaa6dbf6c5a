# SPDX-License-Identifier: Apache-2.0
dist_noinst_SCRIPTS += bench/overhead bench/recovery
EXTRA_DIST += bench/report.py
