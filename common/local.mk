# SPDX-License-Identifier: Apache-2.0
noinst_LTLIBRARIES += libcommon.la
libcommon_la_SOURCES = common/asio_loop.cpp common/asio_loop.h common/event_loop.h common/manual_loop.h
libcommon_la_LIBADD = libbase.la $(PTHREAD_LIBS)
