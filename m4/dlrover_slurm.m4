# SPDX-License-Identifier: Apache-2.0
# DLROVER_SLURM: --with-slurm[=DIR] (check), --with-slurm-plugindir=DIR. Features are probed, not versions.
AC_DEFUN([DLROVER_SLURM], [
  AC_ARG_WITH([slurm], AS_HELP_STRING([--with-slurm@<:@=DIR@:>@], [Slurm's prefix (default: check the system's)]), [], [with_slurm=check])
  AC_ARG_WITH([slurm-plugindir], AS_HELP_STRING([--with-slurm-plugindir=DIR],
    [where dlrover.so goes (default: $libdir/slurm; Slurm's own directory works too, plugstack.conf names the full path)]),
    [slurmplugindir=$withval], [slurmplugindir='${libdir}/slurm'])
  AC_SUBST([slurmplugindir])
  dlrover_have_slurm=no
  dlrover_slurm_include=none
  dlrover_slurm_version=none
  AS_IF([test "x$with_slurm" != xno], [
    dlrover_save_cppflags=$CPPFLAGS
    dlrover_save_libs=$LIBS
    AS_CASE([$with_slurm], [yes|check], [dlrover_slurm_include="default path"],
      [SLURM_CPPFLAGS="-I$with_slurm/include"; SLURM_LDFLAGS="-L$with_slurm/lib"; dlrover_slurm_include=$with_slurm/include])
    CPPFLAGS="$CPPFLAGS $SLURM_CPPFLAGS"
    AC_CHECK_HEADER([slurm/spank.h], [dlrover_have_slurm=yes])
    AC_CHECK_LIB([slurm], [slurm_init], [SLURM_LIBS="$SLURM_LDFLAGS -lslurm"], [SLURM_LIBS="$SLURM_LDFLAGS -lslurm"], [$SLURM_LDFLAGS])
    AS_IF([test $dlrover_have_slurm = yes], [
      AC_CHECK_DECL([spank_prepend_task_argv], [AC_DEFINE([HAVE_SPANK_PREPEND_TASK_ARGV], [1], [Slurm 23.11 and later])], [],
        [[extern "C" {
#include <slurm/spank.h>
}]])
      AC_CHECK_DECL([ESPANK_JOB_FAILURE], [AC_DEFINE([HAVE_SPANK_INIT_FAILURE_MODE], [1], [Slurm 25.05 and later])], [],
        [[extern "C" {
#include <slurm/spank.h>
}]])
      AC_CHECK_DECL([slurm_init], [AC_DEFINE([HAVE_SLURM_INIT], [1], [libslurm wants slurm_init()])], [], [[#include <slurm/slurm.h>]])
      AC_CACHE_CHECK([for the topology as a list of switches], [dlrover_cv_slurm_topology_array],
        [AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <slurm/slurm.h>]],
          [[topo_info_response_msg_t *m = 0; return slurm_load_topo(&m) == 0 && m->topo_array[0].level == 0 && m->topo_array[0].nodes;]])],
          [dlrover_cv_slurm_topology_array=yes], [dlrover_cv_slurm_topology_array=no])])
      AS_IF([test $dlrover_cv_slurm_topology_array = yes],
        [AC_DEFINE([HAVE_SLURM_TOPOLOGY_ARRAY], [1], [slurm_load_topo() lists switches])])
      AC_CHECK_TYPE([slurm_step_id_t], [AC_DEFINE([HAVE_SLURM_STEP_ID_T], [1], [step ids are a structure])], [], [[#include <slurm/slurm.h>]])
      AC_MSG_CHECKING([for Slurm's version])
      dlrover_slurm_number=`printf '#include <slurm/slurm_version.h>\nDLROVER_VERSION SLURM_VERSION_NUMBER\n' | $CXX $CPPFLAGS -E -P -x c++ - 2>/dev/null | tr '\n' ' ' | $SED -n 's/.*DLROVER_VERSION *\(0x@<:@0-9a-fA-F@:>@*\).*/\1/p'`
      AS_IF([test -n "$dlrover_slurm_number"],
        [dlrover_slurm_version=`printf '%d.%02d.%d' $((dlrover_slurm_number >> 16)) $((dlrover_slurm_number >> 8 & 255)) $((dlrover_slurm_number & 255))`],
        [dlrover_slurm_version=unknown])
      AC_MSG_RESULT([$dlrover_slurm_version])
    ])
    CPPFLAGS=$dlrover_save_cppflags
    LIBS=$dlrover_save_libs
  ])
  AS_IF([test $dlrover_have_slurm = no -a "x$with_slurm" != xno -a "x$with_slurm" != xcheck],
    [AC_MSG_ERROR([--with-slurm was given but slurm/spank.h was not found])])
  AS_IF([test $dlrover_have_slurm = yes], [AC_DEFINE([HAVE_SLURM], [1], [Slurm's headers are there])])
  AC_SUBST([SLURM_CPPFLAGS])
  AC_SUBST([SLURM_LIBS])
  AM_CONDITIONAL([HAVE_SLURM], [test $dlrover_have_slurm = yes])
])
