# SPDX-License-Identifier: Apache-2.0
FLATC_FLAGS = --cpp --gen-object-api --scoped-enums --cpp-std c++17 --reflect-types
proto_schemas = proto/common.fbs proto/flush.fbs proto/join.fbs proto/keeper.fbs proto/local.fbs proto/move.fbs proto/peer.fbs proto/peer_link.fbs proto/pmix.fbs proto/records.fbs
proto_generated = proto/common_generated.h proto/flush_generated.h proto/join_generated.h proto/keeper_generated.h proto/local_generated.h proto/move_generated.h proto/peer_generated.h \
	proto/peer_link_generated.h proto/pmix_generated.h \
	proto/records_generated.h

proto_types = $(proto_generated:_generated.h=_types.h)

# Both headers of a schema come of one run; who has lost the types alone gets them anew.
$(proto_generated): $(proto_schemas) $(top_srcdir)/proto/local.mk $(top_srcdir)/proto/split_types.awk
	$(AM_V_GEN)$(MKDIR_P) proto/flatc && $(FLATC) $(FLATC_FLAGS) -I $(top_srcdir)/proto -o proto/flatc $(top_srcdir)/$(@:_generated.h=.fbs) \
	&& name=`basename $@ _generated.h` && for part in tables types; do \
	case $$part in tables) out=$@.new ;; *) out=$(@:_generated.h=_types.h) ;; esac; \
	$(AWK) -v part=$$part -v name=$$name -f $(top_srcdir)/proto/split_types.awk proto/flatc/$${name}_generated.h >$$out || exit 1; done && mv $@.new $@

$(proto_types): $(proto_generated)
	@test -f $@ || { rm -f $(@:_types.h=_generated.h) && $(MAKE) $(AM_MAKEFLAGS) $(@:_types.h=_generated.h); }

BUILT_SOURCES += $(proto_generated) $(proto_types)
CLEANFILES += $(proto_generated) $(proto_types) proto/flatc/*.h
EXTRA_DIST += $(proto_schemas) proto/split_types.awk

noinst_LTLIBRARIES += libproto.la
libproto_la_SOURCES = proto/codec.h proto/message_tree.cpp proto/message_tree.h proto/frame.cpp proto/frame.h proto/goodput.h proto/local_client.cpp proto/local_client.h proto/outcome.cpp proto/outcome.h \
	proto/local_codec.cpp proto/local_codec.h proto/progress.h
nodist_libproto_la_SOURCES = $(proto_generated) $(proto_types)
libproto_la_LIBADD = libbase.la
