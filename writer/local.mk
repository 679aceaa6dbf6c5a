# SPDX-License-Identifier: Apache-2.0
# dlrover-writer: only with HDF5. Everything but main() is a library, for the tests.
writer_sources = writer/attempt.h writer/completion.cpp writer/completion.h writer/destination.cpp writer/destination.h writer/environment.cpp writer/environment.h \
	writer/folder_look.cpp writer/folder_look.h writer/folder_mark.cpp writer/folder_mark.h writer/folder_queue.cpp writer/folder_queue.h writer/life_sign.cpp writer/life_sign.h \
	writer/line.h writer/object_progress.cpp writer/object_progress.h \
	writer/other_runs.cpp writer/other_runs.h \
	writer/service.cpp writer/service.h writer/store_order.cpp writer/store_order.h \
	writer/store_queue.cpp writer/store_queue.h writer/term_claim.cpp writer/term_claim.h writer/tidying.cpp writer/tidying.h
writer_test_sources = tests/unit/main.cpp tests/unit/helper_process.cpp tests/unit/helper_process.h tests/unit/memory_object.cpp \
	tests/unit/memory_object.h tests/unit/storage_fixture.h tests/unit/writer_crash_test.cpp tests/unit/writer_folder_test.cpp \
	tests/unit/writer_process.cpp tests/unit/writer_process.h tests/unit/writer_store_test.cpp
if HAVE_HDF5
noinst_LTLIBRARIES += libwriter.la
libwriter_la_SOURCES = $(writer_sources)
libwriter_la_LIBADD = libhelper.la libproto.la libstoragewrite.la

pkglibexec_PROGRAMS += writer/dlrover-writer
writer_dlrover_writer_SOURCES = writer/main.cpp
writer_dlrover_writer_LDADD = libwriter.la

check_PROGRAMS += tests/unit/writer_test
tests_unit_writer_test_SOURCES = $(writer_test_sources)
tests_unit_writer_test_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_WRITER='"$(abs_top_builddir)/writer/dlrover-writer"'
tests_unit_writer_test_LDADD = libwriter.la
TESTS += tests/unit/writer_test
else
EXTRA_DIST += $(writer_sources) $(writer_test_sources) writer/main.cpp
endif
