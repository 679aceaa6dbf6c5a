# SPDX-License-Identifier: Apache-2.0
# DLROVER_LIBRARIES: what the programs link. Header-only: Boost.Asio, FlatBuffers, CLI11, toml++, Boost.Test (included variant).
AC_DEFUN([DLROVER_NEED_HEADER], [
  AC_CHECK_HEADER([$1], [], [AC_MSG_ERROR([$1 not found: install $2])], [$3])
])

AC_DEFUN([DLROVER_LIBRARIES], [
  AC_LANG_PUSH([C++])
  DLROVER_NEED_HEADER([flatbuffers/flatbuffers.h], [libflatbuffers-dev])
  DLROVER_NEED_HEADER([boost/version.hpp], [libboost-dev])
  DLROVER_NEED_HEADER([boost/test/included/unit_test.hpp], [libboost-test-dev])
  DLROVER_NEED_HEADER([CLI/CLI.hpp], [libcli11-dev])
  DLROVER_NEED_HEADER([toml++/toml.h], [libtomlplusplus-dev])
  DLROVER_NEED_HEADER([xxhash.h], [libxxhash-dev])
  AC_LANG_POP([C++])
  PKG_CHECK_MODULES([XXHASH], [libxxhash])
  PKG_CHECK_MODULES([SPDLOG], [spdlog])
  PKG_CHECK_MODULES([SODIUM], [libsodium])
  # Parities of checkpoints (--dlrover-redundancy=rs:k+m), in dlrover-mover.
  PKG_CHECK_MODULES([ISAL], [libisal >= 2.20], [], [AC_MSG_ERROR([ISA-L not found: install libisal-dev])])
  # The daemon authenticates its peers with MUNGE; without it only single-node groups and standalone mode are built.
  AC_ARG_WITH([munge], AS_HELP_STRING([--with-munge], [links between nodes need it (default: check)]), [], [with_munge=check])
  dlrover_have_munge=no
  AS_IF([test "x$with_munge" != xno], [PKG_CHECK_MODULES([MUNGE], [munge], [dlrover_have_munge=yes],
    [AC_CHECK_LIB([munge], [munge_encode], [dlrover_have_munge=yes; MUNGE_LIBS=-lmunge])])])
  AS_IF([test "x$with_munge" = xyes -a $dlrover_have_munge = no], [AC_MSG_ERROR([--with-munge was given but libmunge was not found])])
  AS_IF([test $dlrover_have_munge = yes], [AC_DEFINE([HAVE_MUNGE], [1], [libmunge is there])])
  AM_CONDITIONAL([HAVE_MUNGE], [test $dlrover_have_munge = yes])
  # Checkpoint memory goes to the NUMA node of its rank; without hwloc the kernel chooses.
  AC_ARG_WITH([hwloc], AS_HELP_STRING([--with-hwloc], [place memory by NUMA node (default: check)]), [], [with_hwloc=check])
  dlrover_have_hwloc=no
  AS_IF([test "x$with_hwloc" != xno], [PKG_CHECK_MODULES([HWLOC], [hwloc >= 2.0], [dlrover_have_hwloc=yes], [:])])
  AS_IF([test "x$with_hwloc" = xyes -a $dlrover_have_hwloc = no], [AC_MSG_ERROR([--with-hwloc was given but hwloc 2 was not found: install libhwloc-dev])])
  AS_IF([test $dlrover_have_hwloc = yes], [AC_DEFINE([HAVE_HWLOC], [1], [hwloc is there])])
  # Checkpoints travel between nodes by UCX where its transport is RDMA; over TCP without it.
  AC_ARG_WITH([ucx], AS_HELP_STRING([--with-ucx], [dlrover-mover uses UCX on RDMA networks (default: check)]), [], [with_ucx=check])
  dlrover_have_ucx=no
  AS_IF([test "x$with_ucx" != xno], [PKG_CHECK_MODULES([UCX], [ucx >= 1.10], [dlrover_have_ucx=yes], [:])])
  AS_IF([test "x$with_ucx" = xyes -a $dlrover_have_ucx = no], [AC_MSG_ERROR([--with-ucx was given but UCX 1.10 was not found: install libucx-dev])])
  AM_CONDITIONAL([HAVE_UCX], [test $dlrover_have_ucx = yes])
  PTHREAD_LIBS=-pthread
  AC_SUBST([PTHREAD_LIBS])
])

# DLROVER_STATIC_AGENT: the agent is linked statically where the system has the libraries, so that it runs inside any container.
AC_DEFUN([DLROVER_STATIC_AGENT], [
  AC_ARG_ENABLE([static-agent], AS_HELP_STRING([--enable-static-agent], [link dlrover-agent statically (default: check)]), [],
    [enable_static_agent=check])
  dlrover_static_agent=no
  AS_IF([test "x$enable_static_agent" != xno -a "x$enable_sanitizers" = xno], [
    dlrover_save_ldflags=$LDFLAGS
    LDFLAGS="$LDFLAGS -static"
    AC_LANG_PUSH([C++])
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <string>]], [[return std::to_string(1).size() != 1;]])], [dlrover_static_agent=yes])
    AC_LANG_POP([C++])
    LDFLAGS=$dlrover_save_ldflags])
  AS_IF([test "x$enable_static_agent" = xyes -a $dlrover_static_agent = no], [AC_MSG_ERROR([static linking does not work here])])
  AM_CONDITIONAL([STATIC_AGENT], [test $dlrover_static_agent = yes])
])

AC_DEFUN([DLROVER_PYTHON], [
  AC_ARG_WITH([python-dir], AS_HELP_STRING([--with-python-dir=DIR], [where the package dlrover_slurm goes (default: $prefix/lib/python3/dist-packages)]),
    [dlroverpythondir=$withval], [dlroverpythondir='${prefix}/lib/python3/dist-packages'])
  AC_SUBST([dlroverpythondir])
])

AC_DEFUN([DLROVER_SYSTEMD], [
  AC_ARG_WITH([systemdsystemunitdir], AS_HELP_STRING([--with-systemdsystemunitdir=DIR], [systemd units (default: $prefix/lib/systemd/system)]),
    [systemdsystemunitdir=$withval], [systemdsystemunitdir='${prefix}/lib/systemd/system'])
  dlrover_systemd=$systemdsystemunitdir
  AC_SUBST([systemdsystemunitdir])
])
