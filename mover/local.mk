# SPDX-License-Identifier: Apache-2.0
# dlrover-mover. Everything but main() is a library, for the tests.
noinst_LTLIBRARIES += libmover.la
libmover_la_SOURCES = mover/arrivals.cpp mover/arrivals.h mover/fold_queue.cpp mover/fold_queue.h mover/here_already.cpp mover/here_already.h mover/object_watch.cpp mover/object_watch.h mover/measure.cpp mover/measure.h mover/send_queue.cpp mover/send_queue.h mover/service.cpp mover/service.h
libmover_la_LIBADD = libhelper.la libbulk.la libckpt.la liberasure.la

pkglibexec_PROGRAMS += mover/dlrover-mover
mover_dlrover_mover_SOURCES = mover/main.cpp
mover_dlrover_mover_LDADD = libmover.la

check_PROGRAMS += tests/unit/mover_test
tests_unit_mover_test_SOURCES = tests/unit/main.cpp tests/unit/helper_process.cpp tests/unit/helper_process.h tests/unit/memory_object.cpp \
	tests/unit/memory_object.h tests/unit/here_already_test.cpp tests/unit/object_watch_test.cpp tests/unit/mover_test.cpp tests/unit/storage_fixture.h
tests_unit_mover_test_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_MOVER='"$(abs_top_builddir)/mover/dlrover-mover"'
tests_unit_mover_test_LDADD = libmover.la
TESTS += tests/unit/mover_test
