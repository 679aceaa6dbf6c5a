# SPDX-License-Identifier: Apache-2.0
# Pure: no clock, socket, thread, file or random source.
noinst_LTLIBRARIES += libelastic.la
libelastic_la_SOURCES = elastic/follower.cpp elastic/goodput.h elastic/goodput_meter.cpp elastic/goodput_meter.h elastic/leader.cpp elastic/member.cpp elastic/member.h elastic/member_state.h \
	elastic/messages.h elastic/restart_budget.cpp elastic/restart_budget.h elastic/types.h
libelastic_la_LIBADD = libbase.la

check_PROGRAMS += tests/unit/member_flow_test
tests_unit_member_flow_test_SOURCES = tests/unit/main.cpp tests/unit/goodput_meter_test.cpp tests/unit/member_flow_test.cpp
tests_unit_member_flow_test_LDADD = libelastic.la
TESTS += tests/unit/member_flow_test
