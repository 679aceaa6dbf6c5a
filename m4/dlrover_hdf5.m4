# SPDX-License-Identifier: Apache-2.0
# DLROVER_HDF5: the library that writes checkpoints on storage. HDF5_CFLAGS, HDF5_LIBS, condition HAVE_HDF5.
# pkg-config knows it on Debian only; elsewhere its compiler wrapper says where it is.
AC_DEFUN([DLROVER_HDF5], [
  AC_ARG_WITH([hdf5], AS_HELP_STRING([--with-hdf5=yes|no|auto], [writing checkpoints on storage needs it (default: auto)]), [], [with_hdf5=auto])
  AS_CASE([$with_hdf5], [yes|no|auto], [], [check], [with_hdf5=auto], [AC_MSG_ERROR([--with-hdf5 takes yes, no or auto])])
  dlrover_have_hdf5=no
  AS_IF([test $with_hdf5 != no], [
    PKG_CHECK_MODULES([HDF5], [hdf5], [dlrover_have_hdf5=maybe], [DLROVER_HDF5_WRAPPER])
    AS_IF([test $dlrover_have_hdf5 = maybe], [DLROVER_HDF5_LINKS])])
  AS_IF([test $with_hdf5 = yes -a $dlrover_have_hdf5 = no],
    [AC_MSG_ERROR([--with-hdf5 was given but HDF5 1.10 or newer was not found: install libhdf5-dev])])
  AM_CONDITIONAL([HAVE_HDF5], [test $dlrover_have_hdf5 = yes])
])

AC_DEFUN([DLROVER_HDF5_WRAPPER], [
  AC_CHECK_PROGS([H5CC], [h5cc])
  AS_IF([test -n "$H5CC"], [
    dlrover_have_hdf5=maybe
    for word in `$H5CC -show`; do
      AS_CASE([$word], [-I*|-D_*], [HDF5_CFLAGS="$HDF5_CFLAGS $word"], [-L*|-l*|*/libhdf5*], [HDF5_LIBS="$HDF5_LIBS $word"])
    done])
])

# A library without virtual datasets is too old.
AC_DEFUN([DLROVER_HDF5_LINKS], [
  dlrover_save_cppflags=$CPPFLAGS
  dlrover_save_libs=$LIBS
  CPPFLAGS="$CPPFLAGS $HDF5_CFLAGS"
  LIBS="$HDF5_LIBS $LIBS"
  AC_MSG_CHECKING([whether HDF5 has virtual datasets])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <hdf5.h>]], [[return H5Pset_virtual(0, 0, "", "", 0) < 0;]])],
    [dlrover_have_hdf5=yes], [dlrover_have_hdf5=no])
  AC_MSG_RESULT([$dlrover_have_hdf5])
  CPPFLAGS=$dlrover_save_cppflags
  LIBS=$dlrover_save_libs
])
