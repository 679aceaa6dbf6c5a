# SPDX-License-Identifier: Apache-2.0
dist_noinst_SCRIPTS += contrib/format
bashcompletiondir = $(datadir)/bash-completion/completions
dist_bashcompletion_DATA = contrib/completion/dlrover
dist_noinst_SCRIPTS += contrib/install-packages contrib/run-tests
EXTRA_DIST += contrib/packages.debian contrib/testing/run_tests.py
