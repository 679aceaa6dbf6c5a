# SPDX-License-Identifier: Apache-2.0
noinst_LTLIBRARIES += libsim.la
libsim_la_SOURCES = sim/check_copies.cpp sim/checks.cpp sim/copies.cpp sim/damage.cpp sim/faults.cpp sim/joins.cpp sim/scales.cpp sim/next_run.cpp sim/pairs.cpp sim/parities.cpp sim/random.h sim/simulator.cpp sim/simulator.h \
    sim/slurm.cpp sim/workers.cpp
libsim_la_LIBADD = libelastic.la

noinst_PROGRAMS += dlrover-sim
dlrover_sim_SOURCES = sim/main.cpp
dlrover_sim_LDADD = libsim.la

check_PROGRAMS += tests/unit/sim_test
tests_unit_sim_test_SOURCES = tests/unit/main.cpp tests/unit/sanitized.h tests/unit/sim_test.cpp
tests_unit_sim_test_LDADD = libsim.la
TESTS += tests/unit/sim_test
