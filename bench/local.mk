# SPDX-License-Identifier: Apache-2.0
dist_noinst_SCRIPTS += bench/ckpt_gpu bench/ckpt_plot bench/ckpt_save bench/goodput bench/membership bench/node_loss bench/overhead bench/plan_dcp bench/pmix_startup bench/recovery
EXTRA_DIST += bench/ckpt_gpu_worker.py bench/ckpt_loads.py bench/ckpt_names.py bench/ckpt_report.py bench/ckpt_save_worker.py bench/ckpt_states.py bench/ckpt_ways.py bench/fence_waits.c bench/mpi_init.c bench/report.py
# Made by "make check", so that they stay what can be made.
check_PROGRAMS += bench/plan_index
bench_plan_index_SOURCES = bench/plan_index.cpp
bench_plan_index_LDADD = libstorage.la libckpt.la libbase.la
check_PROGRAMS += bench/ckpt_copy
bench_ckpt_copy_SOURCES = bench/ckpt_copy.cpp
bench_ckpt_copy_LDADD = libclient.la libarena.la
check_PROGRAMS += bench/replication
bench_replication_SOURCES = bench/loopback.h bench/replication.cpp
bench_replication_LDADD = libmover.la libarena.la
check_PROGRAMS += bench/scale
bench_scale_SOURCES = bench/loopback.h bench/scale.cpp bench/scale_link.cpp bench/scale_link.h
bench_scale_LDADD = libmessagecodec.la libtransport.la
if HAVE_HDF5
check_PROGRAMS += bench/storage_write
bench_storage_write_SOURCES = bench/storage_write.cpp
bench_storage_write_LDADD = libstoragewrite.la
check_PROGRAMS += bench/stored_ranks
bench_stored_ranks_SOURCES = bench/stored_ranks.cpp
bench_stored_ranks_LDADD = libstoragewrite.la
check_PROGRAMS += bench/reshard_read
bench_reshard_read_SOURCES = bench/reshard_read.cpp
bench_reshard_read_LDADD = libclient.la libstoragewrite.la
else
EXTRA_DIST += bench/reshard_read.cpp bench/storage_write.cpp bench/stored_ranks.cpp
endif
