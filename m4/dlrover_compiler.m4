# SPDX-License-Identifier: Apache-2.0
# DLROVER_WARNINGS: WARN_CXXFLAGS and VIS_CXXFLAGS; --enable-werror.
AC_DEFUN([DLROVER_WARNINGS], [
  AC_ARG_ENABLE([werror], AS_HELP_STRING([--enable-werror], [treat warnings as errors]), [], [enable_werror=no])
  WARN_CXXFLAGS="-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers"
  AS_IF([test "x$enable_werror" = xyes], [WARN_CXXFLAGS="$WARN_CXXFLAGS -Werror"])
  VIS_CXXFLAGS="-fvisibility=hidden -fvisibility-inlines-hidden"
  AC_LANG_PUSH([C++])
  AX_CHECK_COMPILE_FLAG([-fno-gnu-unique], [VIS_CXXFLAGS="$VIS_CXXFLAGS -fno-gnu-unique"])
  AC_LANG_POP([C++])
  AC_SUBST([WARN_CXXFLAGS])
  AC_SUBST([VIS_CXXFLAGS])
  dlrover_cxx_version=`$CXX --version | head -n 1`
])

# DLROVER_SANITIZERS: --enable-sanitizers=address,undefined | thread; --enable-fuzzing (clang's libFuzzer); --enable-fault-injection.
AC_DEFUN([DLROVER_SANITIZERS], [
  AC_ARG_ENABLE([sanitizers], AS_HELP_STRING([--enable-sanitizers=LIST], [build with -fsanitize=LIST, e.g. address,undefined]),
    [], [enable_sanitizers=no])
  AC_ARG_ENABLE([fuzzing], AS_HELP_STRING([--enable-fuzzing], [build the libFuzzer targets (clang only)]), [], [enable_fuzzing=no])
  AC_ARG_ENABLE([fault-injection], AS_HELP_STRING([--enable-fault-injection], [build named fault points in (tests only)]),
    [], [enable_fault_injection=no])
  dlrover_sanitizers=none
  AS_IF([test "x$enable_sanitizers" != xno], [
    SAN_CXXFLAGS="-fsanitize=$enable_sanitizers -fno-omit-frame-pointer -fno-sanitize-recover=all"
    dlrover_sanitizers=$enable_sanitizers])
  AS_IF([test "x$enable_fuzzing" = xyes], [
    AS_IF([test "x$enable_sanitizers" != xno], [AC_MSG_ERROR([--enable-fuzzing brings its own sanitizers])])
    SAN_CXXFLAGS="-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all"
    FUZZ_LDFLAGS="-fsanitize=fuzzer"
    dlrover_sanitizers="fuzzer,address,undefined"
    AC_LANG_PUSH([C++])
    dlrover_save_cxxflags=$CXXFLAGS
    CXXFLAGS="$CXXFLAGS -fsanitize=fuzzer"
    AC_LINK_IFELSE([AC_LANG_SOURCE([[#include <cstddef>
      extern "C" int LLVMFuzzerTestOneInput(const unsigned char *, std::size_t) { return 0; }]])], [],
      [AC_MSG_ERROR([--enable-fuzzing needs clang with libFuzzer: CXX=clang++-14, package libclang-rt-14-dev])])
    CXXFLAGS=$dlrover_save_cxxflags
    AC_LANG_POP([C++])])
  # clang's: it takes offence at libcuda's functions, which are called by types of our own.
  AC_LANG_PUSH([C++])
  AS_IF([test "x$SAN_CXXFLAGS" != x],
    [AX_CHECK_COMPILE_FLAG([-fsanitize=function], [SAN_CXXFLAGS="$SAN_CXXFLAGS -fno-sanitize=function"], [], [-Werror])])
  AC_LANG_POP([C++])
  AC_SUBST([FUZZ_LDFLAGS])
  AC_SUBST([SAN_CXXFLAGS])
  AM_CONDITIONAL([SANITIZERS], [test "x$enable_sanitizers" != xno])
  AM_CONDITIONAL([FUZZING], [test "x$enable_fuzzing" = xyes])
  AM_CONDITIONAL([FAULT_INJECTION], [test "x$enable_fault_injection" = xyes])
  AS_IF([test "x$enable_fault_injection" = xyes], [AC_DEFINE([DLROVER_FAULT_INJECTION], [1], [named fault points are built in])])
])
