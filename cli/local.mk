# SPDX-License-Identifier: Apache-2.0
# dlrover: what a person types. No root, no Slurm: it asks the node's daemon.
noinst_LTLIBRARIES += libcli.la
libcli_la_SOURCES = cli/ask.cpp cli/ask.h cli/command_line.cpp cli/command_line.h cli/events_text.cpp cli/events_text.h cli/json.cpp \
	cli/json.h cli/status_text.cpp cli/status_text.h cli/table.cpp cli/table.h
libcli_la_LIBADD = libproto.la

bin_PROGRAMS += dlrover
dlrover_SOURCES = cli/main.cpp
dlrover_LDADD = libcli.la

check_PROGRAMS += tests/unit/cli_test
tests_unit_cli_test_SOURCES = tests/unit/main.cpp tests/unit/cli_test.cpp
tests_unit_cli_test_LDADD = libcli.la
TESTS += tests/unit/cli_test
