# SPDX-License-Identifier: Apache-2.0
# What a daemon asks Slurm: libslurm is linked into the programs that add $(SLURM_LIBS).
noinst_LTLIBRARIES += libslurmclient.la
libslurmclient_la_CPPFLAGS = $(AM_CPPFLAGS) $(SLURM_CPPFLAGS)
libslurmclient_la_SOURCES = daemon/companion.cpp daemon/companion.h daemon/memory_slurm.h daemon/slurm.h daemon/slurm_client.cpp daemon/slurm_client.h \
	daemon/step_watch.cpp daemon/step_watch.h
libslurmclient_la_LIBADD = libcommon.la libproto.la
slurm_calls_sources = daemon/slurm_allocation.cpp daemon/slurm_allocation.h daemon/slurm_api.cpp daemon/slurm_api.h daemon/slurm_calls.cpp \
	daemon/slurm_companions.cpp daemon/slurm_companions.h daemon/slurm_nodes.cpp daemon/slurm_nodes.h daemon/slurm_terms.cpp daemon/slurm_terms.h
if HAVE_SLURM
libslurmclient_la_SOURCES += $(slurm_calls_sources)
libslurmclient_la_LIBADD += $(SLURM_LIBS)

# Beside srun, as the user.
pkglibexec_PROGRAMS += dlrover-watch
dlrover_watch_SOURCES = daemon/watch_main.cpp
dlrover_watch_LDADD = libslurmclient.la $(PTHREAD_LIBS)

# For a rank, as the user.
pkglibexec_PROGRAMS += dlrover-allocate
dlrover_allocate_SOURCES = daemon/allocate_main.cpp
dlrover_allocate_LDADD = libslurmclient.la $(PTHREAD_LIBS)

# By hand, against a running Slurm: tests/system/slurm_probe job 7
noinst_PROGRAMS += tests/system/slurm_probe
tests_system_slurm_probe_SOURCES = tests/system/slurm_probe.cpp
tests_system_slurm_probe_LDADD = libslurmclient.la $(PTHREAD_LIBS)
else
EXTRA_DIST += $(slurm_calls_sources) daemon/allocate_main.cpp daemon/watch_main.cpp tests/system/slurm_probe.cpp
endif

check_PROGRAMS += tests/unit/slurm_client_test
tests_unit_slurm_client_test_SOURCES = tests/unit/main.cpp tests/unit/poll_loop.h tests/unit/slurm_client_test.cpp \
	tests/unit/step_watch_test.cpp
tests_unit_slurm_client_test_LDADD = libslurmclient.la $(PTHREAD_LIBS)
TESTS += tests/unit/slurm_client_test
if HAVE_SLURM
tests_unit_slurm_client_test_CPPFLAGS = $(AM_CPPFLAGS) $(SLURM_CPPFLAGS)
tests_unit_slurm_client_test_SOURCES += tests/unit/slurm_nodes_test.cpp
else
EXTRA_DIST += tests/unit/slurm_nodes_test.cpp
endif
