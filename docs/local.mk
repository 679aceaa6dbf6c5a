# SPDX-License-Identifier: Apache-2.0
EXTRA_DIST += docs/design.md docs/internals.md
EXTRA_DIST += docs/minicluster.md
EXTRA_DIST += docs/benchmarks.md
