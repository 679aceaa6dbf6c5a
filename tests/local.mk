# SPDX-License-Identifier: Apache-2.0
# Unit tests are Boost.Test programs, one per folder: tests/unit/FOLDER_*.cpp.
check_PROGRAMS += tests/unit/base_test
tests_unit_base_test_SOURCES = base/fault.cpp tests/unit/main.cpp tests/unit/fault_test.cpp tests/unit/hostlist_test.cpp tests/unit/signals_blocked_test.cpp tests/unit/status_test.cpp tests/unit/units_test.cpp
tests_unit_base_test_CPPFLAGS = $(AM_CPPFLAGS) -DDLROVER_FAULT_INJECTION
tests_unit_base_test_LDADD = libbase.la
TESTS += tests/unit/base_test

check_PROGRAMS += tests/unit/proto_test
tests_unit_proto_test_SOURCES = tests/unit/main.cpp tests/unit/allocation_words_test.cpp tests/unit/codec_test.cpp tests/unit/frame_test.cpp tests/unit/local_client_test.cpp
tests_unit_proto_test_LDADD = libproto.la $(PTHREAD_LIBS)
TESTS += tests/unit/proto_test
dist_noinst_SCRIPTS += tests/checks/dist-complete tests/checks/doc-programs tests/checks/format tests/checks/headers-alone tests/checks/include-table

# Programs that the system tests run on the virtual nodes.
noinst_PROGRAMS += tests/system/message_probe
tests_system_message_probe_SOURCES = tests/system/message_probe.cpp
tests_system_message_probe_LDADD = libproto.la
EXTRA_DIST += tests/eventually.bash tests/minicluster/minicluster.bats

# libdlrover, dlroverd, dlrover-agent and dlrover-writer with the named points of base/fault.h, for tests/system/cycles.py: what has points
# (and an entry) is compiled once more, the rest is linked as it is. libtool takes all of a convenience library, so these files' twins are in there too:
# the first, ours, count. Made on request, "make fault-programs": nobody who installs needs them.
fault_programs = tests/system/faults/libdlrover.la
EXTRA_LTLIBRARIES += tests/system/faults/libdlrover.la
tests_system_faults_libdlrover_la_SOURCES = base/fault.cpp $(libdlrover_la_SOURCES) lib/daemon_store.cpp lib/file_store.cpp lib/save.cpp
tests_system_faults_libdlrover_la_CPPFLAGS = $(AM_CPPFLAGS) -DDLROVER_FAULT_INJECTION
tests_system_faults_libdlrover_la_LIBADD = $(libdlrover_la_LIBADD)
tests_system_faults_libdlrover_la_LDFLAGS = $(AM_LDFLAGS) -rpath $(abs_builddir) -avoid-version -no-undefined \
	-Wl,--version-script=$(top_srcdir)/lib/libdlrover.map -Wl,--allow-multiple-definition $(libdlrover_defs) -Wl,-z,now
EXTRA_tests_system_faults_libdlrover_la_DEPENDENCIES = $(EXTRA_libdlrover_la_DEPENDENCIES)
fault_programs += tests/system/faults/dlroverd tests/system/faults/dlrover-agent
EXTRA_PROGRAMS += tests/system/faults/dlroverd tests/system/faults/dlrover-agent
tests_system_faults_dlroverd_SOURCES = base/fault.cpp daemon/arena.cpp daemon/group.cpp daemon/group_storage_order.cpp daemon/group_storage_part.cpp daemon/group_workers.cpp daemon/main.cpp
tests_system_faults_dlroverd_CPPFLAGS = $(AM_CPPFLAGS) -DDLROVER_FAULT_INJECTION
tests_system_faults_dlroverd_LDADD = libdaemon.la
tests_system_faults_dlrover_agent_SOURCES = base/fault.cpp agent/agent.cpp agent/guard.cpp agent/main_agent.cpp
tests_system_faults_dlrover_agent_CPPFLAGS = $(AM_CPPFLAGS) -DDLROVER_FAULT_INJECTION
tests_system_faults_dlrover_agent_LDADD = libagent.la
if STATIC_AGENT
tests_system_faults_dlrover_agent_LDFLAGS = $(AM_LDFLAGS) -all-static
endif
if HAVE_HDF5
fault_programs += tests/system/faults/dlrover-writer
EXTRA_PROGRAMS += tests/system/faults/dlrover-writer
tests_system_faults_dlrover_writer_SOURCES = base/fault.cpp ckpt/direct_write.cpp ckpt/storage_io.cpp ckpt/storage_writer.cpp writer/completion.cpp writer/main.cpp writer/store_order.cpp
tests_system_faults_dlrover_writer_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS) -DDLROVER_FAULT_INJECTION
tests_system_faults_dlrover_writer_LDADD = libwriter.la
endif
.PHONY: fault-programs
fault-programs: $(BUILT_SOURCES) $(fault_programs)
CLEANFILES += $(fault_programs)

# On contrib/minicluster, started by contrib/run-tests.
dist_noinst_SCRIPTS += tests/chaos tests/nightly/benchmarks tests/nightly/benchmarks-node-loss tests/nightly/chaos tests/nightly/cycles tests/nightly/fresh-machine tests/nightly/fuzz tests/nightly/kills \
	tests/nightly/simulator tests/nightly/upgrade tests/system/cycles.py tests/system/kills.py tests/system/service-faults tests/nightly/thread-sanitizer
EXTRA_DIST += tests/system/cluster.py tests/system/cycles_worker.py tests/system/fault_twins.py tests/system/heat.py tests/system/resize_field.py tests/system/replicas_worker.py tests/system/resize_worker.py tests/system/test_replicas.py tests/system/test_daemon_crash.py tests/system/test_containers.py tests/system/test_cycles.py tests/system/test_digits.py \
	tests/system/chaos.py tests/system/test_absent.py tests/system/test_chaos.py tests/system/test_companion.py tests/system/test_endings.py tests/system/test_expansion.py tests/system/test_heat.py tests/system/test_heat_sizes.py tests/system/test_isolation.py tests/system/test_kills.py tests/system/test_large_tensor.py tests/system/test_load.py tests/system/test_memory.py tests/system/test_node_back.py tests/system/test_node_check.py tests/system/test_node_faults.py tests/system/test_node_loss.py tests/system/loss_case.py tests/system/test_node_moments.py tests/system/test_output.py tests/system/test_parity.py tests/system/mpi4py_program.py tests/system/mpi4py_restart.py tests/system/mpi_program.c tests/system/event_codes.py tests/system/events_case.py tests/system/membership_program.py tests/system/test_membership.py tests/system/pmix_allocate.c tests/system/pmix_case.py tests/system/pmix_events.c tests/system/pmix_generations.c tests/system/test_pmix_generations.py tests/system/pmix_program.c tests/system/pmix_invite.c tests/system/pmix_late.c tests/system/pmix_test.h tests/system/test_pmix_late.py tests/system/pmix_stranger.c tests/system/pmix_python.py tests/system/stay_program.c tests/system/stay_worker.py tests/system/test_stay.py tests/system/test_partition.py tests/system/test_pmix.py tests/system/test_pmix_allocation.py tests/system/test_pmix_default.py tests/system/test_pmix_events.py tests/system/test_pmix_files.py tests/system/test_pmix_heat.py tests/system/test_pmix_store.py tests/system/pmix_reader.c tests/system/test_requeue.py tests/system/test_resize.py \
	tests/system/test_steady.py tests/system/stored_walk.py tests/system/test_rollback.py tests/system/test_scale.py tests/system/test_storage.py tests/system/test_storage_trouble.py tests/system/test_suspect.py tests/system/test_topology.py tests/system/test_transfer.py tests/system/test_upgrade.py tests/system/test_verified.py tests/system/test_two_jobs.py tests/system/test_watch.py tests/system/walk.py

# Against PyTorch from PyPI, not part of "make check": tests/adapters/run.
dist_noinst_SCRIPTS += tests/adapters/run
EXTRA_DIST += tests/adapters/conftest.py tests/adapters/test_alone.py tests/adapters/models.py tests/adapters/real_models.py tests/adapters/test_compat.py tests/adapters/test_dcp.py tests/adapters/test_export.py tests/adapters/test_extras.py tests/adapters/test_gpu.py tests/adapters/test_gpu_training.py tests/adapters/test_hf.py tests/adapters/test_node_loss.py tests/adapters/test_open_mpi.py tests/adapters/sharded_training.py \
	tests/adapters/test_memory.py tests/adapters/test_plan.py tests/adapters/ranks.py tests/adapters/test_real_models.py tests/adapters/test_replicated.py tests/adapters/test_stored.py tests/adapters/stored.py tests/adapters/test_examples.py tests/adapters/test_sizes.py tests/adapters/trainers.py

# On a machine with an NVIDIA GPU: tests/gpu/run.
dist_noinst_SCRIPTS += tests/gpu/run
EXTRA_DIST += tests/gpu/conftest.py tests/gpu/test_check.py tests/gpu/test_daemon.py tests/gpu/test_saves.py tests/gpu/test_training.py
if HAVE_HDF5
check_PROGRAMS += tests/adapters/to_storage tests/adapters/stored_daemon
tests_adapters_to_storage_SOURCES = tests/adapters/to_storage.cpp
tests_adapters_to_storage_LDADD = libclient.la libstoragewrite.la $(PTHREAD_LIBS)
tests_adapters_stored_daemon_SOURCES = tests/adapters/stored_daemon.cpp tests/unit/lib_fake_daemon.cpp tests/unit/lib_fake_daemon.h
tests_adapters_stored_daemon_LDADD = libstoragewrite.la libstorage.la libckpt.la libproto.la $(PTHREAD_LIBS)
else
EXTRA_DIST += tests/adapters/to_storage.cpp tests/adapters/stored_daemon.cpp
endif
