# SPDX-License-Identifier: Apache-2.0
noinst_LTLIBRARIES += libkeeper.la
libkeeper_la_SOURCES = daemon/fd_store.cpp daemon/fd_store.h daemon/keeper.cpp daemon/keeper.h daemon/keeper_link.cpp \
	daemon/keeper_link.h daemon/notify.cpp daemon/notify.h daemon/record_store.cpp daemon/record_store.h
libkeeper_la_LIBADD = libproto.la

sbin_PROGRAMS += dlrover-keeper
dlrover_keeper_SOURCES = daemon/keeper_main.cpp
dlrover_keeper_CPPFLAGS = $(AM_CPPFLAGS) $(dlrover_path_flags)
dlrover_keeper_LDADD = libkeeper.la

noinst_LTLIBRARIES += libdaemon.la
libdaemon_la_SOURCES = daemon/arena.cpp daemon/arena.h daemon/arena_kept.cpp daemon/arena_memory.cpp daemon/arena_restore.cpp daemon/arena_slots.h daemon/arena_view.cpp daemon/backoff.h \
	daemon/daemon.cpp daemon/daemon.h daemon/event_log.cpp daemon/event_log.h daemon/free_port.cpp daemon/free_port.h \
	daemon/group.cpp daemon/group.h daemon/group_addresses.cpp daemon/group_agents.cpp daemon/group_check.cpp daemon/group_check.h daemon/group_checks.cpp daemon/group_copies.cpp daemon/group_copies.h daemon/group_expand.cpp daemon/group_flush.cpp daemon/group_job_end.cpp daemon/group_join.cpp daemon/group_kept.cpp daemon/group_membership.cpp daemon/group_memory.cpp daemon/group_rollback.cpp daemon/group_scale.cpp daemon/group_stay.cpp \
	daemon/group_mover.cpp daemon/group_mover.h daemon/group_moves.cpp daemon/group_parity.cpp daemon/group_parity.h daemon/group_preempted.cpp daemon/group_status.cpp daemon/group_storage.cpp daemon/group_storage.h daemon/group_storage_end.cpp daemon/group_storage_order.cpp daemon/group_storage_part.cpp daemon/group_storage_share.cpp daemon/group_tables.cpp daemon/group_tables.h daemon/group_workers.cpp \
	daemon/group_verifies.cpp daemon/group_verify.cpp daemon/group_verify.h daemon/group_world.cpp daemon/job_deadline.cpp daemon/job_deadline.h daemon/joiner.cpp daemon/joiner.h daemon/joining.cpp daemon/kept.cpp daemon/local_port.h daemon/local_server.cpp daemon/local_server.h daemon/memory_budget.cpp \
	daemon/peer_process.cpp daemon/peer_process.h daemon/group_pmix.cpp daemon/pmix_relay.cpp daemon/pmix_relay.h \
	daemon/memory_budget.h daemon/inspection.cpp daemon/inspection.h daemon/idle_ranks.cpp daemon/idle_ranks.h daemon/interfaces.cpp daemon/interfaces.h daemon/node_probe.cpp daemon/node_probe.h daemon/outside.cpp daemon/outside.h daemon/progress_pages.cpp daemon/progress_pages.h daemon/slow_close.cpp daemon/slow_close.h daemon/queries.cpp \
	daemon/record_keeper.cpp daemon/record_keeper.h daemon/storage_silence.cpp daemon/storage_silence.h daemon/storage_text.h daemon/records.cpp daemon/records.h daemon/registration.cpp \
	daemon/registration.h daemon/seal_bounds.h daemon/segment_fds.cpp daemon/segment_fds.h daemon/merge.cpp daemon/merge.h daemon/parity.h daemon/query_budget.h daemon/random_bytes.h daemon/relay.cpp daemon/relay.h daemon/site.cpp daemon/site.h daemon/standalone.h daemon/standstill.cpp daemon/standstill.h daemon/summary.cpp daemon/summary.h daemon/table_reader.cpp daemon/table_reader.h daemon/ucx_trust.h daemon/wall_clock.h
libdaemon_la_LIBADD = libkeeper.la libarena.la libckpt.la libelastic.la libmessagecodec.la libslurmclient.la \
	libtopology.la libtransport.la libcommon.la libproto.la

noinst_LTLIBRARIES += libtopology.la
libtopology_la_CPPFLAGS = $(AM_CPPFLAGS) $(HWLOC_CFLAGS)
libtopology_la_SOURCES = daemon/topology.cpp daemon/topology.h
libtopology_la_LIBADD = $(HWLOC_LIBS)

sbin_PROGRAMS += dlroverd
dlroverd_SOURCES = daemon/main.cpp
dlroverd_LDADD = libdaemon.la

check_PROGRAMS += tests/unit/daemon_test
tests_unit_daemon_test_SOURCES = tests/unit/main.cpp tests/unit/daemon_addresses_test.cpp tests/unit/daemon_arena_test.cpp tests/unit/daemon_check_test.cpp tests/unit/daemon_copies_test.cpp tests/unit/daemon_group_test.cpp tests/unit/daemon_job_memory_test.cpp tests/unit/daemon_join_test.cpp tests/unit/daemon_kept_test.cpp \
	tests/unit/daemon_limits_test.cpp tests/unit/daemon_mover_test.cpp tests/unit/daemon_movers.h tests/unit/daemon_nodes.h tests/unit/daemon_parity_test.cpp tests/unit/daemon_parts_test.cpp tests/unit/daemon_pmix_test.cpp tests/unit/daemon_record_store_test.cpp \
	tests/unit/daemon_registration_test.cpp tests/unit/daemon_relay_test.cpp tests/unit/daemon_rows_test.cpp tests/unit/daemon_server_test.cpp tests/unit/daemon_site_test.cpp \
	tests/unit/daemon_share_test.cpp tests/unit/daemon_stay_test.cpp tests/unit/daemon_storage_test.cpp tests/unit/daemon_tables_test.cpp tests/unit/daemon_writers.h tests/unit/daemon_verify_test.cpp tests/unit/fd_store_test.cpp tests/unit/full_keeper.h tests/unit/huge_pages.h tests/unit/keeper_client_test.cpp tests/unit/topology_test.cpp
tests_unit_daemon_test_LDADD = libdaemon.la $(PTHREAD_LIBS)
TESTS += tests/unit/daemon_test

# Against real processes.
check_PROGRAMS += tests/unit/daemon_flow_test
tests_unit_daemon_flow_test_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_KEEPER='"$(abs_top_builddir)/dlrover-keeper"' \
	-DTEST_DAEMON='"$(abs_top_builddir)/dlroverd"' -DTEST_MOVER='"$(abs_top_builddir)/mover/dlrover-mover"'
tests_unit_daemon_flow_test_SOURCES = tests/unit/main.cpp tests/unit/daemon_flow_test.cpp tests/unit/daemon_process.cpp \
	tests/unit/daemon_process.h
tests_unit_daemon_flow_test_LDADD = libproto.la $(PTHREAD_LIBS)
tests_unit_daemon_flow_test_DEPENDENCIES = libproto.la dlroverd dlrover-keeper mover/dlrover-mover
TESTS += tests/unit/daemon_flow_test
