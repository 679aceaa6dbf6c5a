# SPDX-License-Identifier: Apache-2.0
ckpt_generated = ckpt/table_generated.h
ckpt/table_generated.h: ckpt/table.fbs
	$(AM_V_GEN)$(MKDIR_P) ckpt && $(FLATC) $(FLATC_FLAGS) -o ckpt $(top_srcdir)/ckpt/table.fbs

BUILT_SOURCES += $(ckpt_generated)
CLEANFILES += $(ckpt_generated)
EXTRA_DIST += ckpt/table.fbs

noinst_LTLIBRARIES += libckpt.la
libckpt_la_SOURCES = ckpt/block_kernel.h ckpt/block_kernel_avx2.cpp ckpt/block_kernel_body.inc ckpt/block_kernel_portable.cpp \
	ckpt/block_kernel_sse2.cpp ckpt/checksum.cpp ckpt/checksum.h ckpt/dtype.h ckpt/format_version.h ckpt/huge_pages.h ckpt/lineage.cpp ckpt/lineage.h ckpt/mapping.cpp ckpt/mapping.h ckpt/object_check.cpp ckpt/object_check.h ckpt/object_message.h ckpt/object_table.cpp \
	ckpt/object_table.h ckpt/segment_grants.h ckpt/storage_name.cpp ckpt/storage_name.h
nodist_libckpt_la_SOURCES = $(ckpt_generated)

# Parities: for dlrover-mover alone, the daemon links no ISA-L.
noinst_LTLIBRARIES += liberasure.la
liberasure_la_CPPFLAGS = $(AM_CPPFLAGS) $(ISAL_CFLAGS)
liberasure_la_SOURCES = ckpt/erasure.cpp ckpt/erasure.h
liberasure_la_LIBADD = libbase.la $(ISAL_LIBS)

check_PROGRAMS += tests/unit/erasure_test
tests_unit_erasure_test_SOURCES = tests/unit/main.cpp tests/unit/erasure_test.cpp
tests_unit_erasure_test_LDADD = liberasure.la
TESTS += tests/unit/erasure_test

noinst_LTLIBRARIES += libarena.la
libarena_la_SOURCES = ckpt/cgroup_memory.cpp ckpt/cgroup_memory.h ckpt/segment.cpp ckpt/segment.h ckpt/slots.cpp ckpt/slots.h
libarena_la_LIBADD = libbase.la $(PTHREAD_LIBS)

check_PROGRAMS += tests/unit/arena_test
tests_unit_arena_test_SOURCES = tests/unit/main.cpp tests/unit/cgroup_memory_test.cpp tests/unit/ckpt_slots_test.cpp tests/unit/huge_pages.h tests/unit/segment_test.cpp
tests_unit_arena_test_LDADD = libarena.la $(PTHREAD_LIBS)
TESTS += tests/unit/arena_test

# Checkpoints on storage: reading needs no HDF5, writing does. The writer is no part of the daemon, the module or libdlrover.
# Who takes libstorage takes libckpt and libbase too.
noinst_LTLIBRARIES += libstorage.la
libstorage_la_SOURCES = ckpt/box_reader.cpp ckpt/box_reader.h ckpt/box_runs.h ckpt/checkpoint_folder.cpp ckpt/checkpoint_folder.h ckpt/index_plan.cpp \
	ckpt/index_plan.h ckpt/manifest.cpp ckpt/manifest.h ckpt/removal.cpp ckpt/removal.h ckpt/temporary_name.cpp ckpt/temporary_name.h ckpt/retention.cpp ckpt/retention.h ckpt/storage_file.cpp ckpt/storage_file.h ckpt/storage_header.cpp \
	ckpt/storage_answers.h ckpt/storage_header.h ckpt/storage_io.cpp ckpt/storage_io.h

storage_write_sources = ckpt/direct_write.cpp ckpt/direct_write.h ckpt/hdf5_file.cpp ckpt/hdf5_file.h ckpt/hdf5_group.cpp ckpt/hdf5_group.h ckpt/hdf5_memory.cpp ckpt/hdf5_memory.h \
	ckpt/hdf5_parts.cpp ckpt/hdf5_parts.h ckpt/storage_frame.cpp ckpt/storage_frame.h ckpt/storage_image.cpp ckpt/storage_image.h \
	ckpt/storage_index.cpp ckpt/storage_index.h ckpt/storage_writer.cpp ckpt/storage_writer.h
storage_test_sources = tests/unit/main.cpp tests/unit/direct_write_test.cpp tests/unit/storage_file_test.cpp tests/unit/storage_fixture.h tests/unit/storage_frame_test.cpp \
	tests/unit/storage_folder_test.cpp tests/unit/storage_index_test.cpp tests/unit/storage_manifest_test.cpp tests/unit/storage_name_test.cpp
if HAVE_HDF5
noinst_LTLIBRARIES += libstoragewrite.la
libstoragewrite_la_SOURCES = $(storage_write_sources)
libstoragewrite_la_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS)
libstoragewrite_la_LIBADD = libstorage.la libckpt.la libbase.la $(HDF5_LIBS) $(PTHREAD_LIBS)

check_PROGRAMS += tests/unit/storage_test
tests_unit_storage_test_SOURCES = $(storage_test_sources)
tests_unit_storage_test_LDADD = libstoragewrite.la
TESTS += tests/unit/storage_test

check_PROGRAMS += tests/storage/storage_sample
tests_storage_storage_sample_SOURCES = tests/storage/sample.cpp
tests_storage_storage_sample_LDADD = libstoragewrite.la
TESTS += tests/storage/run
else
EXTRA_DIST += $(storage_write_sources) $(storage_test_sources) tests/storage/sample.cpp
endif
dist_check_SCRIPTS += tests/storage/run
EXTRA_DIST += tests/storage/test_ckpt.py tests/storage/test_ckpt_files.py tests/storage/conftest.py tests/storage/test_h5py.py
