# SPDX-License-Identifier: Apache-2.0
ckpt_generated = ckpt/table_generated.h
ckpt/table_generated.h: ckpt/table.fbs
	$(AM_V_GEN)$(MKDIR_P) ckpt && $(FLATC) $(FLATC_FLAGS) -o ckpt $(top_srcdir)/ckpt/table.fbs

BUILT_SOURCES += $(ckpt_generated)
CLEANFILES += $(ckpt_generated)
EXTRA_DIST += ckpt/table.fbs

noinst_LTLIBRARIES += libckpt.la
libckpt_la_SOURCES = ckpt/block_kernel.h ckpt/block_kernel_avx2.cpp ckpt/block_kernel_body.inc ckpt/block_kernel_portable.cpp \
	ckpt/block_kernel_sse2.cpp ckpt/checksum.cpp ckpt/checksum.h ckpt/dtype.h ckpt/object_table.cpp ckpt/object_table.h
nodist_libckpt_la_SOURCES = $(ckpt_generated)

noinst_LTLIBRARIES += libarena.la
libarena_la_SOURCES = ckpt/segment.cpp ckpt/segment.h ckpt/slots.cpp ckpt/slots.h
libarena_la_LIBADD = libbase.la $(PTHREAD_LIBS)

check_PROGRAMS += tests/unit/arena_test
tests_unit_arena_test_SOURCES = tests/unit/main.cpp tests/unit/ckpt_slots_test.cpp tests/unit/segment_test.cpp
tests_unit_arena_test_LDADD = libarena.la $(PTHREAD_LIBS)
TESTS += tests/unit/arena_test
