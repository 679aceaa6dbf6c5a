# SPDX-License-Identifier: Apache-2.0
# dlrover-mover. Everything but main() is a library, for the tests.
noinst_LTLIBRARIES += libmover.la
libmover_la_SOURCES = mover/arrivals.cpp mover/arrivals.h mover/fold_queue.cpp mover/fold_queue.h mover/gpu_check.cpp mover/gpu_check.h mover/gpu_driver.cpp mover/gpu_driver.h mover/gpu_work.cpp mover/gpu_work.h mover/here_already.cpp mover/here_already.h mover/object_watch.cpp mover/object_watch.h mover/measure.cpp mover/measure.h mover/names.cpp mover/names.h mover/send_queue.cpp mover/send_queue.h mover/service.cpp mover/service.h
libmover_la_LIBADD = libhelper.la libbulk.la libckpt.la liberasure.la

pkglibexec_PROGRAMS += mover/dlrover-mover
mover_dlrover_mover_SOURCES = mover/main.cpp
mover_dlrover_mover_LDADD = libmover.la

pkglibexec_PROGRAMS += mover/dlrover-gpu-check
mover_dlrover_gpu_check_SOURCES = mover/gpu_check_main.cpp
mover_dlrover_gpu_check_LDADD = libmover.la

# A CUDA driver whose GPUs are what a test wants: dlrover-gpu-check finds it by LD_LIBRARY_PATH.
noinst_LTLIBRARIES += tests/fakes/work/libcuda.la  # also for tests/system/test_node_back.py
tests_fakes_work_libcuda_la_SOURCES = tests/fakes/work/libcuda.cpp
tests_fakes_work_libcuda_la_LDFLAGS = $(AM_LDFLAGS) -shared -rpath /nowhere -version-info 1:0:0

check_PROGRAMS += tests/unit/mover_test
tests_unit_mover_test_SOURCES = tests/unit/main.cpp tests/unit/helper_process.cpp tests/unit/helper_process.h tests/unit/memory_object.cpp \
	tests/unit/memory_object.h tests/unit/here_already_test.cpp tests/unit/object_watch_test.cpp tests/unit/mover_gpu_test.cpp tests/unit/mover_names_test.cpp tests/unit/mover_test.cpp tests/unit/storage_fixture.h
tests_unit_mover_test_CPPFLAGS = $(AM_CPPFLAGS) -DTEST_MOVER='"$(abs_top_builddir)/mover/dlrover-mover"' \
	-DTEST_GPU_CHECK='"$(abs_top_builddir)/mover/dlrover-gpu-check"' -DFAKE_GPUS='"$(abs_top_builddir)/tests/fakes/work/.libs"'
tests_unit_mover_test_DEPENDENCIES = libmover.la mover/dlrover-mover mover/dlrover-gpu-check tests/fakes/work/libcuda.la
tests_unit_mover_test_LDADD = libmover.la
TESTS += tests/unit/mover_test
