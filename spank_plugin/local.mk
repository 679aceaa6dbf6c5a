# SPDX-License-Identifier: Apache-2.0
# libspankplugin: what knows no Slurm; libspankhooks: one file per Slurm context; dlrover.so adds the entry points.
spank_cppflags = $(AM_CPPFLAGS) $(SLURM_CPPFLAGS) $(dlrover_path_flags)
spank_ldflags = $(AM_LDFLAGS) -module -avoid-version -shared -Wl,--version-script=$(srcdir)/spank_plugin/dlrover.map

noinst_LTLIBRARIES += libspankplugin.la
libspankplugin_la_SOURCES = spank_plugin/module_args.cpp spank_plugin/module_args.h spank_plugin/options.cpp \
	spank_plugin/options.h spank_plugin/request.cpp spank_plugin/step_facts.cpp spank_plugin/step_facts.h \
	spank_plugin/submission.cpp spank_plugin/submission.h spank_plugin/tasks_per_node.cpp spank_plugin/tasks_per_node.h
libspankplugin_la_CPPFLAGS = $(AM_CPPFLAGS) $(dlrover_path_flags)
libspankplugin_la_LIBADD = libproto.la

EXTRA_DIST += spank_plugin/dlrover.map
slurmplugin_LTLIBRARIES =
if HAVE_SLURM
noinst_LTLIBRARIES += libspankhooks.la
libspankhooks_la_SOURCES = spank_plugin/allocator.cpp spank_plugin/controller.cpp spank_plugin/controller.h spank_plugin/exit_code.cpp spank_plugin/launch.cpp spank_plugin/launch.h spank_plugin/local.cpp \
	spank_plugin/module.h spank_plugin/remote.cpp spank_plugin/slurm_options.cpp spank_plugin/slurm_options.h \
	spank_plugin/spank_api.h spank_plugin/submit.cpp spank_plugin/submit.h spank_plugin/watch.cpp spank_plugin/watch.h
libspankhooks_la_CPPFLAGS = $(spank_cppflags)
libspankhooks_la_LIBADD = libspankplugin.la

slurmplugin_LTLIBRARIES += dlrover.la
dlrover_la_SOURCES = spank_plugin/entry.cpp spank_plugin/faults.h
dlrover_la_CPPFLAGS = $(spank_cppflags)
dlrover_la_LDFLAGS = $(spank_ldflags)
dlrover_la_LIBADD = libspankhooks.la
dlrover_la_DEPENDENCIES = libspankhooks.la $(srcdir)/spank_plugin/dlrover.map

pkgdata_DATA += spank_plugin/plugstack.conf
CLEANFILES += spank_plugin/plugstack.conf
spank_plugin/plugstack.conf: Makefile
	$(AM_V_GEN)$(MKDIR_P) spank_plugin && echo 'optional $(slurmplugindir)/dlrover.so' > $@
endif
