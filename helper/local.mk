# SPDX-License-Identifier: Apache-2.0
# What dlrover-writer and dlrover-mover have in common.
noinst_LTLIBRARIES += libhelper.la
libhelper_la_SOURCES = helper/environment.cpp helper/environment.h helper/outbox.cpp helper/outbox.h helper/process.cpp helper/process.h \
	helper/program.cpp helper/program.h helper/session.cpp helper/session.h
libhelper_la_LIBADD = libproto.la
