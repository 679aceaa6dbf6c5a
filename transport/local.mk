# SPDX-License-Identifier: Apache-2.0
noinst_LTLIBRARIES += libtransport.la
libtransport_la_CPPFLAGS = $(AM_CPPFLAGS) $(SODIUM_CFLAGS) $(MUNGE_CFLAGS)
libtransport_la_SOURCES = transport/address_check.cpp transport/address_check.h transport/connection.cpp \
	transport/connection.h transport/credentials.h transport/dialer.cpp transport/dialer.h transport/handshake.cpp \
	transport/handshake.h transport/link_codec.cpp transport/link_codec.h transport/memory_network.cpp \
	transport/memory_network.h transport/munge_credentials.h transport/peer_links.cpp transport/peer_links.h \
	transport/peer_network.h transport/peer_session.cpp transport/peer_session.h transport/secure_channel.cpp \
	transport/secure_channel.h transport/sockets.cpp transport/sockets.h
libtransport_la_LIBADD = libproto.la libcommon.la $(SODIUM_LIBS)
if HAVE_MUNGE
libtransport_la_SOURCES += transport/munge_credentials.cpp
libtransport_la_LIBADD += $(MUNGE_LIBS)
else
EXTRA_DIST += transport/munge_credentials.cpp
endif

# Between movers, which run as users: the daemon links no UCX.
noinst_LTLIBRARIES += libbulk.la
libbulk_la_CPPFLAGS = $(AM_CPPFLAGS) $(SODIUM_CFLAGS) $(UCX_CFLAGS) $(XXHASH_CFLAGS)
libbulk_la_SOURCES = transport/bulk_list.cpp transport/bulk_list.h transport/bulk_sender.cpp transport/bulk_sender.h transport/bulk_server.cpp transport/bulk_server.h \
	transport/bulk_socket.cpp transport/bulk_socket.h transport/bulk_transfer.cpp transport/bulk_transfer.h transport/bulk_ucx.h \
	transport/bulk_wire.cpp transport/bulk_wire.h transport/rate_limit.cpp transport/rate_limit.h \
	transport/rdma_present.cpp
libbulk_la_LIBADD = libtransport.la $(UCX_LIBS) $(XXHASH_LIBS) $(PTHREAD_LIBS)
if HAVE_UCX
libbulk_la_SOURCES += transport/bulk_ucx.cpp
EXTRA_DIST += transport/bulk_ucx_none.cpp
else
libbulk_la_SOURCES += transport/bulk_ucx_none.cpp
EXTRA_DIST += transport/bulk_ucx.cpp
endif
check_PROGRAMS += tests/unit/bulk_test
tests_unit_bulk_test_SOURCES = tests/unit/main.cpp tests/unit/sanitized.h tests/unit/bulk_fixture.h tests/unit/bulk_test.cpp \
	tests/unit/bulk_ucx_test.cpp tests/unit/bulk_wire_test.cpp
tests_unit_bulk_test_LDADD = libbulk.la
TESTS += tests/unit/bulk_test

check_PROGRAMS += tests/unit/ucx_networks_test
tests_unit_ucx_networks_test_SOURCES = tests/unit/main.cpp tests/unit/ucx_networks_test.cpp
tests_unit_ucx_networks_test_LDADD = libbulk.la
TESTS += tests/unit/ucx_networks_test

check_PROGRAMS += tests/unit/transport_test
tests_unit_transport_test_SOURCES = tests/unit/main.cpp tests/unit/fake_credentials.h tests/unit/handshake_test.cpp \
	tests/unit/links_test.cpp tests/unit/poll_loop.h
tests_unit_transport_test_LDADD = libtransport.la $(PTHREAD_LIBS)
TESTS += tests/unit/transport_test

if HAVE_MUNGE
check_PROGRAMS += tests/unit/munge_test
tests_unit_munge_test_SOURCES = tests/unit/main.cpp tests/unit/munge_test.cpp tests/unit/poll_loop.h
tests_unit_munge_test_LDADD = libtransport.la $(PTHREAD_LIBS)
TESTS += tests/unit/munge_test
else
EXTRA_DIST += tests/unit/munge_test.cpp
endif
