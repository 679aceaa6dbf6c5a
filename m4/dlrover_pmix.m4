# SPDX-License-Identifier: Apache-2.0
# DLROVER_PMIX: dlrover-pmixd, the server for programs that speak PMIx. PMIX_CFLAGS, PMIX_LIBS, condition HAVE_PMIX. Any version from 4.1 on
# that has what is used.
AC_DEFUN([DLROVER_PMIX], [
  AC_ARG_WITH([pmix], AS_HELP_STRING([--with-pmix=yes|no|auto], [serving PMIx to MPI programs needs it (default: auto)]), [], [with_pmix=auto])
  AS_CASE([$with_pmix], [yes|no|auto], [], [check], [with_pmix=auto], [AC_MSG_ERROR([--with-pmix takes yes, no or auto])])
  dlrover_have_pmix=no
  AS_IF([test $with_pmix != no], [
    PKG_CHECK_MODULES([PMIX], [pmix], [DLROVER_PMIX_NO_RPATH], [PMIX_LIBS=-lpmix])
    DLROVER_PMIX_LINKS])
  AS_IF([test $with_pmix = yes -a $dlrover_have_pmix = no],
    [AC_MSG_ERROR([--with-pmix was given but no PMIx server library of 4.1 or newer was found: install libpmix-dev])])
  AS_IF([test $dlrover_have_pmix = yes], [AC_DEFINE([HAVE_PMIX], [1], [dlrover-pmixd is built])])
  AM_CONDITIONAL([HAVE_PMIX], [test $dlrover_have_pmix = yes])
])

# Debian's pmix.pc asks for an rpath of a folder in which nothing of the packages at run time is.
AC_DEFUN([DLROVER_PMIX_NO_RPATH], [
  dlrover_pmix_words=
  dlrover_skip=no
  for word in $PMIX_LIBS; do
    AS_IF([test $dlrover_skip = yes], [dlrover_skip=no; continue])
    AS_CASE([$word], [-Wl,-rpath|-Wl,-R], [dlrover_skip=yes], [-Wl,-rpath*|-Wl,-R*|-Wl,--enable-new-dtags], [],
      [dlrover_pmix_words="$dlrover_pmix_words $word"])
  done
  PMIX_LIBS=$dlrover_pmix_words
])

AC_DEFUN([DLROVER_PMIX_LINKS], [
  dlrover_save_cppflags=$CPPFLAGS
  dlrover_save_libs=$LIBS
  CPPFLAGS="$CPPFLAGS $PMIX_CFLAGS"
  LIBS="$PMIX_LIBS $LIBS"
  AC_LANG_PUSH([C++])
  AC_MSG_CHECKING([whether PMIx has what dlrover-pmixd uses])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <pmix_server.h>]], [[
    pmix_server_module_t module{};
    module.client_connected2 = nullptr;
    pmix_value_t value;
    return PMIx_server_init(&module, nullptr, 0) + PMIx_Value_load(&value, PMIX_PROC_INFO_ARRAY, PMIX_REGEX) +
           PMIX_OPERATION_SUCCEEDED;]])], [dlrover_have_pmix=yes], [dlrover_have_pmix=no])
  AC_MSG_RESULT([$dlrover_have_pmix])
  AC_LANG_POP([C++])
  CPPFLAGS=$dlrover_save_cppflags
  LIBS=$dlrover_save_libs
])
