# SPDX-License-Identifier: Apache-2.0
# Pure: no clock, socket, thread, file or random source.
noinst_LTLIBRARIES += libelastic.la
libelastic_la_SOURCES = elastic/absence.cpp elastic/checking.cpp elastic/coding.cpp elastic/coding.h elastic/copier.cpp elastic/copier.h elastic/election.cpp elastic/fence.cpp elastic/flusher.cpp elastic/flusher.h elastic/follower.cpp elastic/generation.cpp elastic/goodput.h \
	elastic/goodput_meter.cpp elastic/goodput_meter.h elastic/incident.cpp elastic/kept.cpp elastic/large_group.h elastic/leader.cpp elastic/local.cpp elastic/mark_search.h elastic/member.cpp \
	elastic/member.h elastic/member_state.h elastic/messages.h elastic/node_check.cpp elastic/node_check.h elastic/node_list.h elastic/placement.cpp elastic/placement.h elastic/planted_bug.h elastic/protection.cpp elastic/restart_budget.cpp \
	elastic/restart_budget.h elastic/roster.cpp elastic/roster.h elastic/savers.cpp elastic/scaling.cpp elastic/scaling.h elastic/seal_tally.cpp elastic/seal_tally.h elastic/skip_tally.h elastic/stored.cpp elastic/suspect.cpp elastic/types.h elastic/witness.cpp
libelastic_la_LIBADD = libbase.la

check_PROGRAMS += tests/unit/member_flow_test
tests_unit_member_flow_test_SOURCES = tests/unit/main.cpp tests/unit/elastic_absence_test.cpp tests/unit/elastic_budget_test.cpp tests/unit/elastic_check_test.cpp tests/unit/elastic_coding_test.cpp tests/unit/elastic_damage_test.cpp tests/unit/elastic_exit_test.cpp tests/unit/elastic_flusher_test.cpp tests/unit/elastic_group.h tests/unit/elastic_join_test.cpp tests/unit/elastic_kept_test.cpp tests/unit/elastic_large_test.cpp tests/unit/elastic_mark_test.cpp \
	tests/unit/elastic_daemon_test.cpp tests/unit/elastic_host_loss_test.cpp tests/unit/elastic_member_test.cpp tests/unit/elastic_news_test.cpp tests/unit/elastic_skips_test.cpp tests/unit/elastic_protection_test.cpp tests/unit/elastic_scaling_test.cpp tests/unit/elastic_seal_tally_test.cpp tests/unit/elastic_signs_test.cpp tests/unit/elastic_suspect_test.cpp tests/unit/elastic_sums_test.cpp tests/unit/goodput_meter_test.cpp tests/unit/member_flow_test.cpp \
	tests/unit/placement_test.cpp
tests_unit_member_flow_test_LDADD = libelastic.la
TESTS += tests/unit/member_flow_test
