# SPDX-License-Identifier: Apache-2.0
# dlrover: what a person types. No root, no Slurm: it asks the node's daemon, or looks after the user's files.
noinst_LTLIBRARIES += libcli.la
libcli_la_SOURCES = cli/ask.cpp cli/ask.h cli/command_line.cpp cli/command_line.h cli/events_text.cpp cli/events_text.h cli/json.cpp \
	cli/json.h cli/node_text.cpp cli/node_text.h cli/status_text.cpp cli/status_text.h cli/table.cpp cli/table.h
libcli_la_LIBADD = libproto.la

noinst_LTLIBRARIES += libclickpt.la
libclickpt_la_SOURCES = cli/ckpt_change.cpp cli/ckpt_command.cpp cli/ckpt_command.h cli/ckpt_export.cpp cli/ckpt_look.cpp \
	cli/ckpt_options.cpp cli/ckpt_options.h cli/ckpt_places.cpp cli/ckpt_places.h cli/ckpt_removal.cpp cli/ckpt_removal.h \
	cli/ckpt_survey.cpp cli/ckpt_survey.h cli/ckpt_view.cpp cli/ckpt_view.h cli/ckpt_work.h cli/confirm.cpp cli/confirm.h \
	cli/export_plan.cpp cli/export_plan.h cli/import_source.cpp cli/import_source.h cli/json_reader.cpp cli/json_reader.h \
	cli/output_file.cpp cli/output_file.h cli/progress.cpp cli/progress.h cli/rollback_command.cpp cli/rollback_command.h cli/running_job.cpp cli/running_job.h \
	cli/scale_command.cpp cli/scale_command.h cli/python_writer.cpp cli/python_writer.h \
	cli/safetensors.cpp cli/safetensors.h cli/tensor_reader.cpp cli/tensor_reader.h cli/tensor_type.cpp cli/tensor_type.h
libclickpt_la_CPPFLAGS = $(AM_CPPFLAGS) -DDLROVER_PYTHONDIR='"$(dlroverpythondir)"'
libclickpt_la_LIBADD = libcli.la
# Writing checkpoints needs HDF5.
if HAVE_HDF5
libclickpt_la_SOURCES += cli/ckpt_import.cpp
libclickpt_la_LIBADD += libstoragewrite.la
EXTRA_DIST += cli/ckpt_import_none.cpp
else
libclickpt_la_SOURCES += cli/ckpt_import_none.cpp
libclickpt_la_LIBADD += libstorage.la
EXTRA_DIST += cli/ckpt_import.cpp
endif

bin_PROGRAMS += dlrover
dlrover_SOURCES = cli/main.cpp
dlrover_LDADD = libclickpt.la

check_PROGRAMS += tests/unit/cli_test
tests_unit_cli_test_SOURCES = tests/unit/main.cpp tests/unit/cli_ckpt_files_test.cpp tests/unit/cli_ckpt_test.cpp \
	tests/unit/cli_test.cpp
tests_unit_cli_test_LDADD = libclickpt.la
TESTS += tests/unit/cli_test
