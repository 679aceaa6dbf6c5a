# SPDX-License-Identifier: Apache-2.0
ckpt_generated = ckpt/table_generated.h
ckpt/table_generated.h: ckpt/table.fbs
	$(AM_V_GEN)$(MKDIR_P) ckpt && $(FLATC) $(FLATC_FLAGS) -o ckpt $(top_srcdir)/ckpt/table.fbs

BUILT_SOURCES += $(ckpt_generated)
CLEANFILES += $(ckpt_generated)
EXTRA_DIST += ckpt/table.fbs
