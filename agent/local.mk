# SPDX-License-Identifier: Apache-2.0
noinst_LTLIBRARIES += libagent.la
libagent_la_SOURCES = agent/agent.cpp agent/agent.h agent/aside.cpp agent/aside.h agent/beside.cpp agent/beside.h agent/crew.cpp agent/crew.h agent/environment.cpp agent/environment.h \
	agent/file_writer.cpp agent/file_writer.h agent/files.cpp agent/files.h agent/filler.cpp agent/filler.h agent/guard.cpp agent/guard.h agent/link.cpp agent/link.h agent/log_plan.cpp \
	agent/log_plan.h agent/loop.cpp agent/loop.h agent/nonblocking_writer.cpp agent/nonblocking_writer.h agent/oom.cpp \
	agent/oom.h agent/run_options.cpp agent/run_options.h \
	agent/signature.cpp agent/signature.h agent/sink.cpp agent/sink.h agent/spawn.cpp agent/spawn.h agent/spill.cpp \
	agent/spill.h agent/standalone.cpp agent/standalone.h agent/stream.cpp agent/stream.h agent/task.cpp agent/task.h agent/verifier.cpp agent/verifier.h
libagent_la_CPPFLAGS = $(AM_CPPFLAGS) $(dlrover_path_flags)
libagent_la_LIBADD = libproto.la libarena.la libckpt.la

# Static where possible: a container entered by another module does not hide the agent then.
pkglibexec_PROGRAMS += agent/dlrover-agent
agent_dlrover_agent_SOURCES = agent/main_agent.cpp
agent_dlrover_agent_LDADD = libagent.la
bin_PROGRAMS += agent/dlrover-run
agent_dlrover_run_SOURCES = agent/main_run.cpp
agent_dlrover_run_LDADD = libagent.la
if STATIC_AGENT
agent_dlrover_agent_LDFLAGS = $(AM_LDFLAGS) -all-static
agent_dlrover_run_LDFLAGS = $(AM_LDFLAGS) -all-static
endif

# The agent against a daemon that says what the test tells it.
check_PROGRAMS += tests/system/fake_daemon
tests_system_fake_daemon_SOURCES = tests/system/fake_daemon.cpp
tests_system_fake_daemon_LDADD = libproto.la
agent_system_tests = tests/system/agent_life_test.py tests/system/agent_lost_test.py tests/system/agent_output_test.py \
	tests/system/agent_run_test.py
EXTRA_DIST += tests/system/agent_case.py $(agent_system_tests)
TESTS += $(agent_system_tests)

check_PROGRAMS += tests/unit/agent_test
tests_unit_agent_test_SOURCES = tests/unit/main.cpp tests/unit/agent_environment_test.cpp tests/unit/agent_filler_test.cpp tests/unit/agent_guard_test.cpp tests/unit/agent_loop_test.cpp tests/unit/agent_options_test.cpp \
	tests/unit/agent_output_test.cpp tests/unit/agent_signature_test.cpp tests/unit/agent_tree_test.cpp tests/unit/agent_verifier_test.cpp \
	tests/unit/memory_object.cpp tests/unit/memory_object.h tests/unit/storage_fixture.h
tests_unit_agent_test_LDADD = libagent.la
TESTS += tests/unit/agent_test
