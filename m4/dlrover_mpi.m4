# SPDX-License-Identifier: Apache-2.0
# DLROVER_MPI: Open MPI for an example; nothing else of ours knows it. MPI_CFLAGS, MPI_LIBS, condition HAVE_MPI.
AC_DEFUN([DLROVER_MPI], [
  AC_ARG_WITH([mpi], AS_HELP_STRING([--with-mpi=yes|no|auto], [build the MPI example, with what mpicc of Open MPI says (default: auto)]), [], [with_mpi=auto])
  AS_CASE([$with_mpi], [yes|no|auto], [], [check], [with_mpi=auto], [AC_MSG_ERROR([--with-mpi takes yes, no or auto])])
  dlrover_have_mpi=no
  AS_IF([test $with_mpi != no], [
    AC_CHECK_PROG([MPICC], [mpicc], [mpicc])
    AS_IF([test -n "$MPICC"], [DLROVER_MPI_LINKS])])
  AS_IF([test $with_mpi = yes -a $dlrover_have_mpi = no],
    [AC_MSG_ERROR([--with-mpi was given but no Open MPI was found: install openmpi-bin and libopenmpi-dev])])
  AM_CONDITIONAL([HAVE_MPI], [test $dlrover_have_mpi = yes])
])

# Its headers are not ours to have warnings about; the C++ interface of old is not used.
AC_DEFUN([DLROVER_MPI_LINKS], [
  MPI_CFLAGS="-DOMPI_SKIP_MPICXX `$MPICC --showme:compile 2>/dev/null | $SED 's/-I */-isystem /g'`"
  MPI_LIBS=`$MPICC --showme:link 2>/dev/null | $SED 's/-Wl,-rpath[[^ ]]*//g;s/-Wl,--enable-new-dtags//g'`
  AC_SUBST([MPI_CFLAGS])
  AC_SUBST([MPI_LIBS])
  dlrover_save_cppflags=$CPPFLAGS
  dlrover_save_libs=$LIBS
  CPPFLAGS="$CPPFLAGS $MPI_CFLAGS"
  LIBS="$MPI_LIBS $LIBS"
  AC_MSG_CHECKING([whether a program links with Open MPI])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>]], [[return OMPI_MAJOR_VERSION + MPI_Init(nullptr, nullptr);]])], [dlrover_have_mpi=yes], [dlrover_have_mpi=no])
  AC_MSG_RESULT([$dlrover_have_mpi])
  CPPFLAGS=$dlrover_save_cppflags
  LIBS=$dlrover_save_libs
])
