# SPDX-License-Identifier: Apache-2.0
# Fuzz targets; see tests/fuzz/README.md. Without --enable-fuzzing each is a test with a driver of our own.
if FUZZING
fuzz_main = tests/fuzz/fuzz.h tests/fuzz/libfuzzer.cpp
else
fuzz_main = tests/fuzz/fuzz.h tests/fuzz/driver.cpp
endif
EXTRA_DIST += tests/fuzz/README.md tests/fuzz/driver.cpp tests/fuzz/libfuzzer.cpp
dist_noinst_SCRIPTS += tests/fuzz/run-all
fuzz_ldflags = $(AM_LDFLAGS) $(FUZZ_LDFLAGS)

fuzz_targets = tests/fuzz/fuzz_units tests/fuzz/fuzz_hostlist tests/fuzz/fuzz_settings \
	tests/fuzz/fuzz_frame_reader tests/fuzz/fuzz_local_message tests/fuzz/fuzz_keeper_message \
	tests/fuzz/fuzz_peer_link tests/fuzz/fuzz_group_message tests/fuzz/fuzz_object_table \
	tests/fuzz/fuzz_spank_options tests/fuzz/fuzz_file_footer \
	tests/fuzz/fuzz_manifest tests/fuzz/fuzz_storage_header tests/fuzz/fuzz_safetensors tests/fuzz/fuzz_flush_word \
	tests/fuzz/fuzz_bulk_wire tests/fuzz/fuzz_move_word tests/fuzz/fuzz_join_word \
	tests/fuzz/fuzz_pmix_word tests/fuzz/fuzz_pmix_parcel
check_PROGRAMS += $(fuzz_targets)
if !FUZZING
TESTS += $(fuzz_targets)
endif
.PHONY: fuzz-targets
fuzz-targets: $(BUILT_SOURCES) $(fuzz_targets)

tests_fuzz_fuzz_units_SOURCES = tests/fuzz/units.cpp $(fuzz_main)
tests_fuzz_fuzz_units_LDADD = libbase.la
tests_fuzz_fuzz_units_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_hostlist_SOURCES = tests/fuzz/hostlist.cpp $(fuzz_main)
tests_fuzz_fuzz_hostlist_LDADD = libbase.la
tests_fuzz_fuzz_hostlist_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_settings_SOURCES = tests/fuzz/settings.cpp $(fuzz_main)
tests_fuzz_fuzz_settings_LDADD = libcommon.la
tests_fuzz_fuzz_settings_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_frame_reader_SOURCES = tests/fuzz/frame_reader.cpp $(fuzz_main)
tests_fuzz_fuzz_frame_reader_LDADD = libproto.la
tests_fuzz_fuzz_frame_reader_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_local_message_SOURCES = tests/fuzz/local_message.cpp $(fuzz_main)
tests_fuzz_fuzz_local_message_LDADD = libproto.la
tests_fuzz_fuzz_local_message_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_keeper_message_SOURCES = tests/fuzz/keeper_message.cpp $(fuzz_main)
tests_fuzz_fuzz_keeper_message_LDADD = libproto.la
tests_fuzz_fuzz_keeper_message_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_peer_link_SOURCES = tests/fuzz/peer_link.cpp $(fuzz_main)
tests_fuzz_fuzz_peer_link_LDADD = libtransport.la $(PTHREAD_LIBS)
tests_fuzz_fuzz_peer_link_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_bulk_wire_SOURCES = tests/fuzz/bulk_wire.cpp $(fuzz_main)
tests_fuzz_fuzz_bulk_wire_LDADD = libbulk.la
tests_fuzz_fuzz_bulk_wire_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_group_message_SOURCES = tests/fuzz/group_message.cpp $(fuzz_main)
tests_fuzz_fuzz_group_message_LDADD = libmessagecodec.la
tests_fuzz_fuzz_group_message_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_flush_word_SOURCES = tests/fuzz/flush_word.cpp $(fuzz_main)
tests_fuzz_fuzz_flush_word_LDADD = libmessagecodec.la
tests_fuzz_fuzz_flush_word_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_move_word_SOURCES = tests/fuzz/move_word.cpp $(fuzz_main)
tests_fuzz_fuzz_move_word_LDADD = libmessagecodec.la
tests_fuzz_fuzz_move_word_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_join_word_SOURCES = tests/fuzz/join_word.cpp $(fuzz_main)
tests_fuzz_fuzz_join_word_LDADD = libmessagecodec.la
tests_fuzz_fuzz_join_word_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_pmix_word_SOURCES = tests/fuzz/pmix_word.cpp $(fuzz_main)
tests_fuzz_fuzz_pmix_word_LDADD = libmessagecodec.la
tests_fuzz_fuzz_pmix_word_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_pmix_parcel_SOURCES = tests/fuzz/pmix_parcel.cpp $(fuzz_main)
tests_fuzz_fuzz_pmix_parcel_LDADD = libexchange.la
tests_fuzz_fuzz_pmix_parcel_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_object_table_SOURCES = tests/fuzz/object_table.cpp $(fuzz_main)
tests_fuzz_fuzz_object_table_LDADD = libckpt.la libbase.la
tests_fuzz_fuzz_object_table_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_spank_options_SOURCES = tests/fuzz/spank_options.cpp $(fuzz_main)
tests_fuzz_fuzz_spank_options_LDADD = libspankplugin.la
tests_fuzz_fuzz_spank_options_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_file_footer_SOURCES = tests/fuzz/file_footer.cpp $(fuzz_main)
tests_fuzz_fuzz_file_footer_LDADD = libclient.la $(PTHREAD_LIBS)
tests_fuzz_fuzz_file_footer_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_manifest_SOURCES = tests/fuzz/manifest.cpp $(fuzz_main)
tests_fuzz_fuzz_manifest_LDADD = libstorage.la libckpt.la libbase.la
tests_fuzz_fuzz_manifest_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_storage_header_SOURCES = tests/fuzz/storage_header.cpp $(fuzz_main)
tests_fuzz_fuzz_storage_header_LDADD = libstorage.la libckpt.la libbase.la
tests_fuzz_fuzz_storage_header_LDFLAGS = $(fuzz_ldflags)

tests_fuzz_fuzz_safetensors_SOURCES = tests/fuzz/safetensors.cpp $(fuzz_main)
tests_fuzz_fuzz_safetensors_LDADD = libclickpt.la
tests_fuzz_fuzz_safetensors_LDFLAGS = $(fuzz_ldflags)
