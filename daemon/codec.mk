# SPDX-License-Identifier: Apache-2.0
# Translation between elastic/messages.h and proto/peer.fbs, and of words about checkpoints on storage.
noinst_LTLIBRARIES += libmessagecodec.la
libmessagecodec_la_SOURCES = daemon/flush_codec.cpp daemon/flush_codec.h daemon/id_runs.h daemon/message_codec.h daemon/message_decode.cpp daemon/message_encode.cpp daemon/message_wire.h daemon/join_codec.cpp daemon/join_codec.h daemon/move_codec.cpp daemon/move_codec.h daemon/pmix_codec.cpp daemon/pmix_codec.h
libmessagecodec_la_LIBADD = libproto.la libelastic.la

check_PROGRAMS += tests/unit/message_codec_test
tests_unit_message_codec_test_SOURCES = tests/unit/main.cpp tests/unit/message_codec_test.cpp tests/unit/id_runs_test.cpp
tests_unit_message_codec_test_LDADD = libmessagecodec.la
TESTS += tests/unit/message_codec_test
