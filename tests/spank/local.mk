# SPDX-License-Identifier: Apache-2.0
# The module without Slurm (a host program plays slurmstepd and srun), and its test-only variants.
check_PROGRAMS += tests/unit/spank_test
tests_unit_spank_test_SOURCES = tests/unit/main.cpp tests/unit/spank_options_test.cpp tests/unit/spank_submission_test.cpp
tests_unit_spank_test_LDADD = libspankplugin.la
TESTS += tests/unit/spank_test

TESTS += tests/checks/completion
dist_check_SCRIPTS += tests/checks/completion

if HAVE_SLURM
check_LTLIBRARIES += tests/spank/dlrover_faulty.la tests/spank/dlrover_foreign.la
spank_variant_ldflags = $(spank_ldflags) -rpath /nowhere

tests_spank_dlrover_faulty_la_SOURCES = spank_plugin/entry.cpp spank_plugin/faults.cpp
tests_spank_dlrover_faulty_la_CPPFLAGS = $(spank_cppflags) -DDLROVER_SPANK_FAULTS
tests_spank_dlrover_faulty_la_LDFLAGS = $(spank_variant_ldflags)
tests_spank_dlrover_faulty_la_LIBADD = libspankhooks.la

# Says it was built for Slurm 21.08.
tests_spank_dlrover_foreign_la_SOURCES = spank_plugin/entry.cpp
tests_spank_dlrover_foreign_la_CPPFLAGS = $(spank_cppflags) -DDLROVER_SLURM_VERSION=0x150800
tests_spank_dlrover_foreign_la_LDFLAGS = $(spank_variant_ldflags)
tests_spank_dlrover_foreign_la_LIBADD = libspankhooks.la

check_PROGRAMS += tests/spank/echo_agent
tests_spank_echo_agent_SOURCES = tests/spank/echo_agent.c
EXTRA_DIST += tests/system/spank.bats

check_PROGRAMS += tests/spank/echo_daemon
tests_spank_echo_daemon_SOURCES = tests/spank/echo_daemon.cpp tests/spank/fake_daemon.cpp tests/spank/fake_daemon.h
tests_spank_echo_daemon_LDADD = libproto.la $(PTHREAD_LIBS)

check_PROGRAMS += tests/spank/host_test
tests_spank_host_test_SOURCES = tests/unit/main.cpp tests/spank/fake_daemon.cpp tests/spank/fake_daemon.h tests/spank/host.cpp \
	tests/spank/host.h tests/spank/host_local_test.cpp tests/spank/host_remote_test.cpp tests/unit/dying_daemon.h
tests_spank_host_test_CPPFLAGS = $(spank_cppflags) -DMODULE_DIR='"$(abs_builddir)"'
tests_spank_host_test_LDFLAGS = $(AM_LDFLAGS) -export-dynamic
tests_spank_host_test_LDADD = libspankplugin.la $(PTHREAD_LIBS)
tests_spank_host_test_DEPENDENCIES = libspankplugin.la dlrover.la tests/spank/dlrover_faulty.la
TESTS += tests/spank/host_test
dist_check_SCRIPTS += tests/checks/module-symbols
if !SANITIZERS
TESTS += tests/checks/module-symbols
endif
endif
