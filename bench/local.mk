# SPDX-License-Identifier: Apache-2.0
dist_noinst_SCRIPTS += bench/overhead bench/recovery
EXTRA_DIST += bench/report.py
if HAVE_HDF5
EXTRA_PROGRAMS += bench/storage_write
CLEANFILES += bench/storage_write
bench_storage_write_SOURCES = bench/storage_write.cpp
bench_storage_write_LDADD = libstoragewrite.la
else
EXTRA_DIST += bench/storage_write.cpp
endif
