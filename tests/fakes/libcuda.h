/* SPDX-License-Identifier: Apache-2.0 */
/** \file libcuda.h
 * Control of the fake CUDA driver, a libcuda.so.1 for machines without a GPU. "Device" memory is malloc's.
 * Work given to a stream is done as late as the rules of streams allow: when somebody synchronises with it.
 * So a copy that nobody waited for has not happened, and one that did not wait for the program's work has old
 * bytes. C, so that Python's ctypes can use it too.
 */
#ifndef DLROVER_TEST_FAKE_CUDA_H
#define DLROVER_TEST_FAKE_CUDA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Everything as at the beginning: no streams, no memory, no log, nothing refused. The context of device 0 is
 * current in this thread. */
void fake_cuda_reset(void);
/** Memory of a device (0 or 1). pooled: it belongs to no context, as memory of a pool. */
void *fake_cuda_allocate(int device, size_t bytes, int pooled);
/** A stream of the program, in the primary context of `device`. */
void *fake_cuda_stream(int device);
/** A kernel: when the stream comes to it, the bytes are written. They are copied now. */
void fake_cuda_launch_write(void *stream, void *device_memory, const void *bytes, size_t count);
/** Does all of a stream's work. */
void fake_cuda_synchronize(void *stream);
/** From now on the stream is being captured, or no more; its result tells whether the capture was spoiled. */
void fake_cuda_begin_capture(void *stream);
int fake_cuda_end_capture(void *stream);

/** cuMemHostRegister fails after `after` more successes; -1: never. */
void fake_cuda_refuse_registration(int after);
/** The copy after `after` more fails when it is made (not when it is asked for); -1: none. */
void fake_cuda_fail_copy(int after);
/** This function returns `result` from now on; 0: works again. */
void fake_cuda_fail_call(const char *name, int result);
/** cuMemHostRegister does not return between these. */
void fake_cuda_hold_registration(int hold);

/** The calls since the last reset, one a line: NAME ARGUMENTS. The program's streams are s0, s1, ... in order
 * of creation, the library's too, one numbering; "default" is NULL. Valid until the next call of this. */
const char *fake_cuda_log(void);
size_t fake_cuda_registered_bytes(void);
/** Streams, events, pinned memory and retained contexts that are still there, besides the program's. */
int fake_cuda_left(void);
/** What the rules forbid and happened nevertheless, one a line; "" is well. */
const char *fake_cuda_violations(void);
/** Capture mode of this thread (0: global), contexts on its stack. */
int fake_cuda_capture_mode(void);
int fake_cuda_context_depth(void);

#ifdef __cplusplus
}
#endif
#endif
