# SPDX-License-Identifier: Apache-2.0
dist_man_MANS += man/dlrover.1 man/dlrover-ckpt.1
dist_man_MANS += man/dlrover.toml.5
dist_man_MANS += man/dlrover-elastic.1
dist_man_MANS += man/libdlrover.3 man/dlrover_pmix.3
dist_man_MANS += man/dlrover-agent.1 man/dlrover-run.1
dist_man_MANS += man/dlrover-writer.1 man/dlrover-mover.1 man/dlrover-gpu-check.1 man/dlrover-allocate.1 man/dlrover-pmixd.1 man/dlrover-watch.1

dist_man_MANS += man/dlroverd.8 man/dlrover-keeper.8
