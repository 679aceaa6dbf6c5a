# SPDX-License-Identifier: Apache-2.0
# dlrover-pmixd: only with PMIx. What needs none of it is a library of its own, always built and tested.
noinst_LTLIBRARIES += libexchange.la
libexchange_la_SOURCES = pmix_server/announcement.cpp pmix_server/announcement.h pmix_server/board.cpp pmix_server/board.h pmix_server/conversation.cpp pmix_server/conversation.h pmix_server/courier.cpp pmix_server/courier.h pmix_server/exchange.cpp pmix_server/exchange.h \
	pmix_server/fence_table.cpp pmix_server/fence_table.h pmix_server/group_part.cpp pmix_server/group_part.h pmix_server/modex_table.cpp pmix_server/modex_table.h \
	pmix_server/notice.cpp pmix_server/notice.h pmix_server/notice_table.cpp pmix_server/notice_table.h \
	pmix_server/parcel.cpp pmix_server/parcel.h pmix_server/world.cpp pmix_server/world.h
libexchange_la_CPPFLAGS = $(AM_CPPFLAGS) $(XXHASH_CFLAGS)
libexchange_la_LIBADD = libproto.la $(XXHASH_LIBS)

check_PROGRAMS += tests/unit/exchange_test
tests_unit_exchange_test_SOURCES = tests/unit/main.cpp tests/unit/announcement_test.cpp tests/unit/board_test.cpp tests/unit/conversation_test.cpp tests/unit/courier_test.cpp tests/unit/exchange_test.cpp \
	tests/unit/fence_table_test.cpp tests/unit/group_part_test.cpp tests/unit/notice_table_test.cpp
tests_unit_exchange_test_LDADD = libexchange.la
TESTS += tests/unit/exchange_test

pmixd_sources = pmix_server/accept_guard.cpp pmix_server/accept_guard.h pmix_server/allocation.cpp pmix_server/allocation.h pmix_server/allocator.cpp pmix_server/allocator.h pmix_server/client_watch.cpp pmix_server/client_watch.h pmix_server/completion.h pmix_server/control.cpp pmix_server/control.h pmix_server/dlrover_pmix.h pmix_server/info_list.cpp pmix_server/info_list.h pmix_server/job_data.cpp pmix_server/job_data.h pmix_server/news.cpp pmix_server/news.h pmix_server/number.cpp pmix_server/number.h \
	pmix_server/pmix_api.h pmix_server/security.cpp pmix_server/security.h pmix_server/server.cpp pmix_server/server.h pmix_server/service.cpp pmix_server/service.h pmix_server/service_requests.cpp \
	pmix_server/unsent.cpp pmix_server/unsent.h pmix_server/upcalls.cpp pmix_server/upcalls.h pmix_server/value_codec.cpp pmix_server/value_codec.h
pmixd_test_sources = tests/unit/main.cpp tests/unit/accept_guard_test.cpp tests/unit/allocation_test.cpp tests/unit/allocator_test.cpp tests/unit/poll_loop.h tests/unit/control_test.cpp tests/unit/job_data_test.cpp tests/unit/news_test.cpp tests/unit/number_test.cpp tests/unit/unsent_test.cpp
pmixd_process_test_sources = tests/unit/main.cpp tests/unit/helper_process.cpp tests/unit/helper_process.h tests/unit/pmixd_nodes.h tests/unit/pmixd_limits_test.cpp tests/unit/pmixd_process_test.cpp
if HAVE_PMIX
include_HEADERS += pmix_server/dlrover_pmix.h
noinst_LTLIBRARIES += libpmixd.la
libpmixd_la_SOURCES = $(pmixd_sources)
libpmixd_la_CPPFLAGS = $(AM_CPPFLAGS) $(PMIX_CFLAGS)
libpmixd_la_LIBADD = libexchange.la libhelper.la libcommon.la $(PMIX_LIBS)

pkglibexec_PROGRAMS += pmix_server/dlrover-pmixd
pmix_server_dlrover_pmixd_SOURCES = pmix_server/main.cpp
pmix_server_dlrover_pmixd_CPPFLAGS = $(AM_CPPFLAGS) $(PMIX_CFLAGS)
pmix_server_dlrover_pmixd_LDADD = libpmixd.la

check_PROGRAMS += tests/unit/pmixd_test
tests_unit_pmixd_test_SOURCES = $(pmixd_test_sources)
tests_unit_pmixd_test_CPPFLAGS = $(AM_CPPFLAGS) $(PMIX_CFLAGS)
tests_unit_pmixd_test_LDADD = libpmixd.la
TESTS += tests/unit/pmixd_test

check_PROGRAMS += tests/unit/pmix_client tests/unit/pmix_bare_server tests/unit/pmixd_process_test
tests_unit_pmix_bare_server_SOURCES = tests/unit/pmix_bare_server.cpp
tests_unit_pmix_bare_server_CPPFLAGS = $(AM_CPPFLAGS) $(PMIX_CFLAGS)
tests_unit_pmix_bare_server_LDADD = $(PMIX_LIBS)
tests_unit_pmix_client_SOURCES = tests/unit/pmix_client.cpp
tests_unit_pmix_client_CPPFLAGS = $(AM_CPPFLAGS) $(PMIX_CFLAGS)
tests_unit_pmix_client_LDADD = $(PMIX_LIBS)
tests_unit_pmixd_process_test_SOURCES = $(pmixd_process_test_sources)
tests_unit_pmixd_process_test_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_PMIXD='"$(abs_top_builddir)/pmix_server/dlrover-pmixd"' \
	-DTEST_PMIX_CLIENT='"$(abs_top_builddir)/tests/unit/pmix_client"' -DTEST_PMIX_BARE_SERVER='"$(abs_top_builddir)/tests/unit/pmix_bare_server"'
tests_unit_pmixd_process_test_LDADD = libproto.la
tests_unit_pmixd_process_test_DEPENDENCIES = libproto.la pmix_server/dlrover-pmixd tests/unit/pmix_client tests/unit/pmix_bare_server
TESTS += tests/unit/pmixd_process_test
else
EXTRA_DIST += $(pmixd_sources) $(pmixd_test_sources) $(pmixd_process_test_sources) tests/unit/pmix_bare_server.cpp tests/unit/pmix_client.cpp pmix_server/main.cpp
endif
