# SPDX-License-Identifier: Apache-2.0
# Beside the README, whose links lead there.
docsdir = $(docdir)/docs
dist_docs_DATA = docs/benchmarks-history.md docs/benchmarks.md docs/c-api.md docs/checkpoints.md docs/ckpt_save.svg docs/containers.md docs/design.md docs/format-object.md \
	docs/format-storage.md docs/internals.md docs/minicluster.md docs/pmix.md docs/protocol-mover.md docs/protocol-peer.md docs/protocol-pmix.md \
	docs/python.md docs/simulator.md docs/what-happens.md
