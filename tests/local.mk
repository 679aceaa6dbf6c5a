# SPDX-License-Identifier: Apache-2.0
# Unit tests are Boost.Test programs, one per folder: tests/unit/FOLDER_*.cpp.
check_PROGRAMS += tests/unit/base_test
tests_unit_base_test_SOURCES = tests/unit/main.cpp tests/unit/hostlist_test.cpp tests/unit/status_test.cpp tests/unit/units_test.cpp
tests_unit_base_test_LDADD = libbase.la
TESTS += tests/unit/base_test

check_PROGRAMS += tests/unit/proto_test
tests_unit_proto_test_SOURCES = tests/unit/main.cpp tests/unit/codec_test.cpp tests/unit/frame_test.cpp tests/unit/local_client_test.cpp
tests_unit_proto_test_LDADD = libproto.la $(PTHREAD_LIBS)
TESTS += tests/unit/proto_test
dist_noinst_SCRIPTS += tests/checks/dist-complete tests/checks/doc-programs tests/checks/format tests/checks/headers-alone tests/checks/include-table

# Programs that the system tests run on the virtual nodes.
noinst_PROGRAMS += tests/system/message_probe
tests_system_message_probe_SOURCES = tests/system/message_probe.cpp
tests_system_message_probe_LDADD = libproto.la
EXTRA_DIST += tests/eventually.bash tests/minicluster/minicluster.bats

# On contrib/minicluster, started by contrib/run-tests.
dist_noinst_SCRIPTS += tests/nightly/adapters tests/nightly/benchmarks tests/nightly/fresh-machine tests/nightly/fuzz tests/nightly/kills \
	tests/nightly/simulator tests/system/kills.py tests/system/service-faults tests/nightly/thread-sanitizer
EXTRA_DIST += tests/system/cluster.py tests/system/heat.py tests/system/test_daemon_crash.py tests/system/test_containers.py tests/system/test_digits.py \
	tests/system/test_endings.py tests/system/test_heat.py tests/system/test_isolation.py tests/system/test_kills.py tests/system/test_output.py tests/system/test_storage.py

# Against PyTorch from PyPI, not part of "make check": tests/adapters/run.
dist_noinst_SCRIPTS += tests/adapters/run
EXTRA_DIST += tests/adapters/conftest.py tests/adapters/models.py tests/adapters/test_compat.py tests/adapters/test_dcp.py tests/adapters/test_hf.py \
	tests/adapters/test_memory.py
