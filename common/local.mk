# SPDX-License-Identifier: Apache-2.0
noinst_LTLIBRARIES += libcommon.la
libcommon_la_CPPFLAGS = $(AM_CPPFLAGS) $(SPDLOG_CFLAGS)
libcommon_la_SOURCES = common/asio_loop.cpp common/asio_loop.h common/event_loop.h common/log.cpp common/log.h common/log_queue.cpp common/log_queue.h \
	common/manual_loop.h common/repeat_filter.cpp common/repeat_filter.h common/settings.cpp common/settings.h \
	common/settings_table.cpp common/settings_table.h common/worker_thread.cpp common/worker_thread.h
libcommon_la_LIBADD = libbase.la $(SPDLOG_LIBS) $(PTHREAD_LIBS)
EXTRA_DIST += common/README.md

check_PROGRAMS += tests/unit/common_test
tests_unit_common_test_CPPFLAGS = $(AM_CPPFLAGS) $(SPDLOG_CFLAGS) -DTEST_MAN_PAGE='"$(abs_top_srcdir)/man/dlrover.toml.5"'
tests_unit_common_test_SOURCES = tests/unit/main.cpp tests/unit/log_queue_test.cpp tests/unit/log_test.cpp tests/unit/settings_test.cpp
tests_unit_common_test_LDADD = libcommon.la
TESTS += tests/unit/common_test
