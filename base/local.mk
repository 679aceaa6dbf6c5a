# SPDX-License-Identifier: Apache-2.0
noinst_LTLIBRARIES += libbase.la
libbase_la_SOURCES = base/count_of.h base/fault.cpp base/fault.h base/hostlist.cpp base/hostlist.h base/ids.h base/process_tree.cpp base/process_tree.h base/redundancy.cpp base/redundancy.h base/signals_blocked.h base/slurm_error.h base/status.cpp base/status.h base/unique_fd.h base/units.cpp base/units.h
EXTRA_DIST += base/README.md
