# SPDX-License-Identifier: Apache-2.0
dist_doc_DATA += docs/c-api.md docs/checkpoints.md docs/containers.md docs/format-object.md docs/format-storage.md docs/pmix.md docs/python.md docs/what-happens.md
EXTRA_DIST += docs/design.md docs/internals.md docs/simulator.md
EXTRA_DIST += docs/minicluster.md
EXTRA_DIST += docs/benchmarks.md docs/ckpt_save.svg
EXTRA_DIST += docs/protocol-peer.md
EXTRA_DIST += docs/protocol-mover.md docs/protocol-pmix.md
