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
