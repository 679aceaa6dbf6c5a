// SPDX-License-Identifier: Apache-2.0
// DLROVER_SANITIZED: built with a sanitizer that takes much time and address space.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DLROVER_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DLROVER_SANITIZED 1
#endif
