# SPDX-License-Identifier: Apache-2.0
# Fortran's module is installed as source: what a compiler makes of it is for that compiler alone.
include_HEADERS += lib/dlrover.h lib/dlrover.f90

# Everything but the entry points, for the tests.
noinst_LTLIBRARIES += libclient.la
libclient_la_SOURCES = lib/background_populate.cpp lib/background_populate.h lib/context.cpp lib/context.h lib/cuda_driver.cpp lib/cuda_driver.h \
	lib/cuda_lane.cpp lib/cuda_lane.h lib/cuda_stage.cpp lib/cuda_stage.h lib/daemon_link.cpp lib/daemon_link.h lib/daemon_store.cpp lib/daemon_store.h \
	lib/environment.cpp lib/environment.h lib/error.cpp lib/error.h lib/events.cpp lib/events.h \
	lib/file_format.cpp lib/file_format.h lib/file_store.cpp lib/file_store.h lib/fork_guard.cpp lib/fork_guard.h lib/fresh_memory.cpp lib/fresh_memory.h \
	lib/global_tensors.cpp lib/global_tensors.h lib/guard.h lib/next_generation.cpp lib/next_generation.h lib/memory_pieces.cpp lib/memory_pieces.h lib/numa.cpp lib/numa.h lib/own_tensors.cpp lib/own_tensors.h \
	lib/openmp_team.cpp lib/openmp_team.h lib/parallel.cpp lib/parallel.h lib/pinned_range.cpp lib/pinned_range.h lib/piece_source.h lib/progress.cpp lib/progress.h lib/protect.cpp lib/protect.h lib/protect_gather.cpp lib/rank_objects.cpp lib/rank_objects.h \
	lib/restore.cpp lib/restore.h \
	lib/save.cpp lib/save.h lib/share.cpp lib/share.h lib/store.h lib/stored_blocks.cpp lib/stored_blocks.h lib/stored_checkpoint.cpp lib/stored_checkpoint.h lib/stored_chunks.cpp lib/stored_chunks.h \
	lib/stored_files.cpp lib/stored_files.h lib/stored_object.cpp lib/stored_object.h lib/stored_tensors.cpp lib/stored_tensors.h
libclient_la_LIBADD = libstorage.la libckpt.la libproto.la

# libtool names -lstdc++ itself: it finds a linker script that stands for the archive.
if STATIC_CXX
static_cxx = lib/static-cxx/libstdc++.so
static_cxx_libs = -L$(top_builddir)/lib/static-cxx
lib/static-cxx/libstdc++.so: Makefile
	$(AM_V_GEN)$(MKDIR_P) lib/static-cxx && echo 'INPUT($(dlrover_libstdcxx))' >$@
CLEANFILES += lib/static-cxx/libstdc++.so
endif
if !SANITIZERS
libdlrover_defs = -Wl,-z,defs
endif

lib_LTLIBRARIES += libdlrover.la
libdlrover_la_SOURCES = lib/api.cpp lib/api_chunk.h lib/api_protect.cpp lib/api_share.cpp
libdlrover_la_LIBADD = $(static_cxx_libs) libclient.la $(PTHREAD_LIBS)
libdlrover_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 -no-undefined -Wl,--version-script=$(top_srcdir)/lib/libdlrover.map \
	$(libdlrover_defs) -Wl,-z,now -Wl,--gc-sections
EXTRA_libdlrover_la_DEPENDENCIES = $(top_srcdir)/lib/libdlrover.map $(static_cxx)
EXTRA_DIST += lib/libdlrover.map lib/dlrover.pc.in

pkgconfigdir = $(libdir)/pkgconfig
nodist_pkgconfig_DATA = lib/dlrover.pc
CLEANFILES += lib/dlrover.pc
lib/dlrover.pc: $(top_srcdir)/lib/dlrover.pc.in Makefile
	$(AM_V_GEN)$(MKDIR_P) lib && $(SED) -e 's|@prefix[@]|$(prefix)|; s|@exec_prefix[@]|$(exec_prefix)|; s|@libdir[@]|$(libdir)|' \
		-e 's|@includedir[@]|$(includedir)|; s|@PACKAGE_VERSION[@]|$(PACKAGE_VERSION)|' $(top_srcdir)/lib/dlrover.pc.in >$@

check_PROGRAMS += tests/unit/ckpt_test
tests_unit_ckpt_test_SOURCES = tests/unit/main.cpp tests/unit/ckpt_checksum_test.cpp tests/unit/ckpt_object_table_test.cpp
tests_unit_ckpt_test_LDADD = libckpt.la libbase.la
TESTS += tests/unit/ckpt_test

check_PROGRAMS += tests/unit/lib_test
tests_unit_lib_test_SOURCES = tests/unit/main.cpp tests/unit/dying_daemon.h tests/unit/lib_daemon_test.cpp \
	tests/unit/lib_fake_daemon.cpp tests/unit/lib_fake_daemon.h tests/unit/lib_file_test.cpp tests/unit/lib_fixture.h \
	tests/unit/lib_protect_test.cpp tests/unit/lib_shared_test.cpp
tests_unit_lib_test_LDADD = libdlrover.la libckpt.la libproto.la $(PTHREAD_LIBS)
TESTS += tests/unit/lib_test

check_PROGRAMS += tests/unit/client_test
tests_unit_client_test_SOURCES = tests/unit/main.cpp tests/unit/lib_numa_test.cpp tests/unit/lib_populate_test.cpp tests/unit/lib_save_test.cpp \
	tests/unit/huge_pages.h tests/unit/smaps.h tests/unit/stored_blocks_test.cpp
tests_unit_client_test_LDADD = libclient.la libarena.la $(PTHREAD_LIBS)
TESTS += tests/unit/client_test

check_PROGRAMS += tests/unit/openmp_test
tests_unit_openmp_test_SOURCES = tests/unit/main.cpp tests/unit/lib_openmp_test.cpp
tests_unit_openmp_test_LDADD = libclient.la $(PTHREAD_LIBS)
TESTS += tests/unit/openmp_test

# Saving from a GPU, without one: a driver that records takes the place of NVIDIA's.
check_LTLIBRARIES += tests/fakes/libcuda.la
tests_fakes_libcuda_la_SOURCES = tests/fakes/libcuda.cpp tests/fakes/libcuda.h
tests_fakes_libcuda_la_LDFLAGS = $(AM_LDFLAGS) -shared -rpath /nowhere -version-info 1:0:0
EXTRA_DIST += tests/fakes/fake_gpu.py

check_PROGRAMS += tests/unit/cuda_test
tests_unit_cuda_test_SOURCES = tests/unit/main.cpp tests/unit/fake_cuda.h tests/unit/lib_cuda_driver_test.cpp tests/unit/lib_cuda_save_test.cpp \
	tests/unit/lib_cuda_stage_test.cpp tests/unit/lib_fake_daemon.cpp tests/unit/lib_fake_daemon.h tests/unit/lib_fixture.h
tests_unit_cuda_test_LDADD = libdlrover.la tests/fakes/libcuda.la libclient.la libproto.la $(PTHREAD_LIBS)
TESTS += tests/unit/cuda_test

# The writer makes the checkpoints; the library reads them without HDF5.
stored_test_sources = tests/unit/main.cpp tests/unit/stored_fixture.h tests/unit/stored_object_test.cpp tests/unit/stored_ranks_test.cpp \
	tests/unit/stored_protect_test.cpp tests/unit/stored_tensors_test.cpp
if HAVE_HDF5
check_PROGRAMS += tests/unit/stored_test
tests_unit_stored_test_SOURCES = $(stored_test_sources) tests/unit/lib_fake_daemon.cpp tests/unit/lib_fake_daemon.h \
	tests/unit/lib_fixture.h tests/unit/storage_fixture.h
tests_unit_stored_test_LDADD = libdlrover.la libstoragewrite.la libstorage.la libckpt.la libproto.la $(PTHREAD_LIBS)
TESTS += tests/unit/stored_test
else
EXTRA_DIST += $(stored_test_sources)
endif

TESTS += tests/checks/library tests/python/run
dist_check_SCRIPTS += tests/checks/library tests/python/run
EXTRA_DIST += tests/python/conftest.py tests/python/test_compat.py tests/python/test_cuda.py tests/python/test_daemon.py tests/python/test_global.py tests/python/test_numpy.py tests/python/test_plan.py tests/python/test_process.py tests/python/test_replicated.py tests/python/test_torch.py \
	tests/python/test_chunks.py tests/python/test_values.py
