! SPDX-License-Identifier: Apache-2.0
! libdlrover for Fortran 2008: protected memory, progress and the world. Compile it with the program; dlrover.h is the
! reference, docs/c-api.md has an example. Counts and shapes are in elements. A shape is written in C's order: the
! dimensions of a Fortran array the other way round.
module dlrover
    use, intrinsic :: iso_c_binding
    implicit none

    integer(c_int), parameter :: DLROVER_OK = 0, DLROVER_E_INVALID = -1, DLROVER_E_UNAVAILABLE = -2, DLROVER_E_STALE = -3, &
        DLROVER_E_NOT_FOUND = -4, DLROVER_E_NO_MEMORY = -5, DLROVER_E_CORRUPT = -6, DLROVER_E_SKIPPED = -7, &
        DLROVER_E_FORKED = -8, DLROVER_E_TIMEOUT = -9, DLROVER_E_SYSTEM = -10, DLROVER_E_UNSUPPORTED = -11
    ! Element types.
    integer(c_int32_t), parameter :: DLROVER_BYTES = 0, DLROVER_BOOL = 1, DLROVER_UINT8 = 2, DLROVER_INT8 = 3, &
        DLROVER_UINT16 = 4, DLROVER_INT16 = 5, DLROVER_UINT32 = 6, DLROVER_INT32 = 7, DLROVER_UINT64 = 8, DLROVER_INT64 = 9, &
        DLROVER_FLOAT16 = 10, DLROVER_BFLOAT16 = 11, DLROVER_FLOAT32 = 12, DLROVER_FLOAT64 = 13, DLROVER_FLOAT8_E4M3 = 14, &
        DLROVER_FLOAT8_E5M2 = 15, DLROVER_COMPLEX64 = 16, DLROVER_COMPLEX128 = 17

    type, bind(c) :: dlrover_world
        integer(c_int32_t) :: rank, world_size, local_rank, local_world_size, group_rank, group_world_size
        integer(c_int64_t) :: generation_term, generation_number
        integer(c_int32_t) :: restart_count
        integer(c_int64_t) :: restore_step
        integer(c_int) :: managed
    end type

    interface
        integer(c_int) function dlrover_open(context) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), intent(out) :: context
        end function
        subroutine dlrover_close(context) bind(c)
            import :: c_ptr
            type(c_ptr), value :: context
        end subroutine
        integer(c_int) function dlrover_get_world(context, world) bind(c)
            import :: c_int, c_ptr, dlrover_world
            type(c_ptr), value :: context
            type(dlrover_world), intent(out) :: world
        end function

        ! This process goes on in the next generation: said once, and then, where its generation ends, within 3 s. context is another one afterwards.
        integer(c_int) function dlrover_stay(context) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: context
        end function
        integer(c_int) function dlrover_next_generation(context) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: context
        end function

        integer(c_int) function dlrover_prepare(context, bytes) bind(c)
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: context
            integer(c_int64_t), value :: bytes
        end function

        ! Later checkpoints wait up to so long for a free slot; 0: they are skipped at once.
        integer(c_int) function dlrover_save_wait(context, milliseconds) bind(c)
            import :: c_int, c_int32_t, c_ptr
            type(c_ptr), value :: context
            integer(c_int32_t), value :: milliseconds
        end function

        ! memory: c_loc() of a variable with the target or pointer attribute.
        integer(c_int) function dlrover_protect(context, id, memory, count, dtype) bind(c)
            import :: c_int, c_int32_t, c_int64_t, c_ptr
            type(c_ptr), value :: context, memory
            integer(c_int), value :: id
            integer(c_int64_t), value :: count
            integer(c_int32_t), value :: dtype
        end function
        ! name: ends in c_null_char.
        integer(c_int) function dlrover_protect_array(context, id, name, memory, dtype, ndim, global_shape, &
                global_offset, local_shape) bind(c)
            import :: c_char, c_int, c_int32_t, c_int64_t, c_ptr
            type(c_ptr), value :: context, memory
            integer(c_int), value :: id
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int32_t), value :: dtype, ndim
            integer(c_int64_t), intent(in) :: global_shape(*), global_offset(*), local_shape(*)
        end function
        integer(c_int) function dlrover_unprotect(context, id) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: context
            integer(c_int), value :: id
        end function
        integer(c_int64_t) function dlrover_protected_bytes(context) bind(c)
            import :: c_int64_t, c_ptr
            type(c_ptr), value :: context
        end function
        integer(c_int) function dlrover_checkpoint(context, step) bind(c)
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: context
            integer(c_int64_t), value :: step
        end function

        integer(c_int) function dlrover_restart_available(context) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: context
        end function
        integer(c_int64_t) function dlrover_restart_step(context) bind(c)
            import :: c_int64_t, c_ptr
            type(c_ptr), value :: context
        end function
        integer(c_int) function dlrover_restart_size(context, id, count) bind(c)
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: context
            integer(c_int), value :: id
            integer(c_int64_t), intent(inout) :: count
        end function
        integer(c_int) function dlrover_restart(context) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: context
        end function

        integer(c_int) function dlrover_report_step(context, step) bind(c)
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: context
            integer(c_int64_t), value :: step
        end function
        ! name: ends in c_null_char.
        integer(c_int) function dlrover_phase_begin(context, name) bind(c)
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: context
            character(kind=c_char), intent(in) :: name(*)
        end function
        integer(c_int) function dlrover_phase_end(context) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: context
        end function

        type(c_ptr) function dlrover_error_text() bind(c)
            import :: c_ptr
        end function
    end interface

contains

    ! What went wrong last in this thread.
    function dlrover_error() result(text)
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: bytes(:)
        integer :: i, length
        call c_f_pointer(dlrover_error_text(), bytes, [1024])  ! the library's text is never longer
        length = 0
        do while (length < 1024)
            if (bytes(length + 1) == c_null_char) exit
            length = length + 1
        end do
        allocate(character(len=length) :: text)
        do i = 1, length
            text(i:i) = bytes(i)
        end do
    end function
end module
