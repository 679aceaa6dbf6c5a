# SPDX-License-Identifier: Apache-2.0
FLATC_FLAGS = --cpp --gen-object-api --scoped-enums --cpp-std c++17 --reflect-types
proto_schemas = proto/common.fbs proto/flush.fbs proto/join.fbs proto/keeper.fbs proto/local.fbs proto/move.fbs proto/peer.fbs proto/peer_link.fbs proto/pmix.fbs proto/records.fbs
# Of each schema flatc makes one header, of which most files need the smaller part.
proto_whole = $(proto_schemas:.fbs=_whole.h)
proto_generated = $(proto_schemas:.fbs=_generated.h)
proto_types = $(proto_schemas:.fbs=_types.h)
split_types = $(top_srcdir)/proto/split_types.awk

$(proto_whole): $(proto_schemas) $(top_srcdir)/proto/local.mk
	$(AM_V_GEN)$(MKDIR_P) proto && $(FLATC) $(FLATC_FLAGS) --filename-suffix _whole -I $(top_srcdir)/proto -o proto $(top_srcdir)/$(@:_whole.h=.fbs)
$(proto_generated): $(proto_whole) $(split_types)
	$(AM_V_GEN)$(AWK) -v part=tables -v name=`basename $@ _generated.h` -f $(split_types) $(@:_generated.h=_whole.h) >$@.new && mv $@.new $@
$(proto_types): $(proto_whole) $(split_types)
	$(AM_V_GEN)$(AWK) -v part=types -v name=`basename $@ _types.h` -f $(split_types) $(@:_types.h=_whole.h) >$@.new && mv $@.new $@

BUILT_SOURCES += $(proto_generated) $(proto_types)
CLEANFILES += $(proto_whole) $(proto_generated) $(proto_types) proto/*_generated.h.new proto/*_types.h.new
EXTRA_DIST += $(proto_schemas) proto/split_types.awk

noinst_LTLIBRARIES += libproto.la
libproto_la_SOURCES = proto/codec.h proto/message_tree.cpp proto/message_tree.h proto/frame.cpp proto/frame.h proto/goodput.h proto/local_client.cpp proto/local_client.h proto/outcome.cpp proto/outcome.h \
	proto/allocation_words.cpp proto/allocation_words.h proto/local_codec.cpp proto/local_codec.h proto/progress.h
nodist_libproto_la_SOURCES = $(proto_generated) $(proto_types)
libproto_la_LIBADD = libbase.la
