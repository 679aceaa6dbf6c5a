# SPDX-License-Identifier: Apache-2.0
noinst_HEADERS += common/event_loop.h
