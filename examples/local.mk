# SPDX-License-Identifier: Apache-2.0
# heat sees dlrover.h and nothing else of ours.
noinst_LTLIBRARIES += libheat.la
libheat_la_SOURCES = examples/heat/checkpoint.cpp examples/heat/checkpoint.h examples/heat/failure.cpp examples/heat/failure.h examples/heat/field_file.cpp examples/heat/field_file.h \
	examples/heat/neighbours.cpp examples/heat/neighbours.h examples/heat/options.cpp examples/heat/options.h \
	examples/heat/phase.cpp examples/heat/phase.h examples/heat/plate.cpp examples/heat/plate.h
libheat_la_CPPFLAGS = -I$(top_srcdir) -I$(top_srcdir)/lib

examplesexecdir = $(pkglibexecdir)/examples
examplesexec_PROGRAMS = examples/heat/heat
examples_heat_heat_SOURCES = examples/heat/main.cpp
examples_heat_heat_CPPFLAGS = $(libheat_la_CPPFLAGS)
examples_heat_heat_LDADD = libheat.la libdlrover.la

# The same solver over MPI.
if HAVE_MPI
examplesexec_PROGRAMS += examples/heat/heat-mpi
examples_heat_heat_mpi_SOURCES = examples/heat/main_mpi.cpp
examples_heat_heat_mpi_CPPFLAGS = $(libheat_la_CPPFLAGS) $(MPI_CFLAGS)
examples_heat_heat_mpi_LDADD = libheat.la libdlrover.la $(MPI_LIBS)
else
EXTRA_DIST += examples/heat/main_mpi.cpp
endif

digitsdir = $(pkgdatadir)/examples/digits
dist_digits_DATA = examples/digits/README.md examples/digits/data.py examples/digits/model.py
dist_digits_SCRIPTS = examples/digits/train.py
EXTRA_DIST += examples/heat/README.md

flashdir = $(pkgdatadir)/examples/flash
dist_flash_DATA = examples/flash/README.md
dist_flash_SCRIPTS = examples/flash/demo.py
gptdir = $(pkgdatadir)/examples/gpt
dist_gpt_DATA = examples/gpt/README.md
dist_gpt_SCRIPTS = examples/gpt/train.py
