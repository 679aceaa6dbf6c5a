# SPDX-License-Identifier: Apache-2.0
# What dlrover-pmixd needs no PMIx for.
noinst_LTLIBRARIES += libexchange.la
libexchange_la_SOURCES = pmix_server/courier.cpp pmix_server/courier.h pmix_server/exchange.cpp pmix_server/exchange.h \
	pmix_server/fence_table.cpp pmix_server/fence_table.h pmix_server/modex_table.cpp pmix_server/modex_table.h \
	pmix_server/parcel.cpp pmix_server/parcel.h pmix_server/world.cpp pmix_server/world.h
libexchange_la_CPPFLAGS = $(AM_CPPFLAGS) $(XXHASH_CFLAGS)
libexchange_la_LIBADD = libproto.la $(XXHASH_LIBS)

check_PROGRAMS += tests/unit/exchange_test
tests_unit_exchange_test_SOURCES = tests/unit/main.cpp tests/unit/courier_test.cpp tests/unit/exchange_test.cpp tests/unit/fence_table_test.cpp
tests_unit_exchange_test_LDADD = libexchange.la
TESTS += tests/unit/exchange_test
