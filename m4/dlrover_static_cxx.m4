# SPDX-License-Identifier: Apache-2.0
# DLROVER_STATIC_CXX: libdlrover.so carries its C++ library inside where an archive of it can be linked into a shared object, so that it
# loads in containers with an older one.
AC_DEFUN([DLROVER_STATIC_CXX], [
  AC_MSG_CHECKING([for a C++ library to link into libdlrover.so])
  dlrover_libstdcxx=`$CXX -print-file-name=libstdc++.a 2>/dev/null`
  dlrover_static_cxx=no
  AS_IF([test -f "$dlrover_libstdcxx" -a "x$enable_sanitizers" = xno], [
    dlrover_save_ldflags=$LDFLAGS
    dlrover_save_libs=$LIBS
    LDFLAGS="$LDFLAGS -shared -fPIC -Wl,-z,defs"
    LIBS="$dlrover_libstdcxx $LIBS"
    AC_LANG_PUSH([C++])
    AC_LINK_IFELSE([AC_LANG_SOURCE([[#include <string>
std::string dlrover_probe(int i) { return std::to_string(i); }]])], [dlrover_static_cxx=yes])
    AC_LANG_POP([C++])
    LDFLAGS=$dlrover_save_ldflags
    LIBS=$dlrover_save_libs])
  AS_IF([test $dlrover_static_cxx = yes], [AC_MSG_RESULT([$dlrover_libstdcxx])], [AC_MSG_RESULT([no, it stays outside])])
  AC_SUBST([dlrover_libstdcxx])
  AM_CONDITIONAL([STATIC_CXX], [test $dlrover_static_cxx = yes])
])
