// SPDX-License-Identifier: Apache-2.0
// Body of a block kernel, compiled once per instruction set: the including file defines STREAM_64 (copies 64
// bytes past the cache) and STREAM_FENCE, and includes nothing that has inline functions with external
// linkage, so that no code of a larger instruction set is picked by the linker for common use.

namespace {

constexpr size_t piece_bytes = 32768;  // stays in the first-level or second-level cache between hash and copy
constexpr size_t stream_threshold = 8192;  // below, the copy may as well stay in the cache

uint64_t kernel_hash(const void *data, size_t bytes) {
    return XXH3_64bits(data, bytes);
}

void stream_piece(char *to, const char *from, size_t bytes) {
    size_t whole = bytes & ~static_cast<size_t>(63);
    for (size_t i = 0; i < whole; i += 64) STREAM_64(to + i, from + i);
    if (whole != bytes) memcpy(to + whole, from + whole, bytes - whole);
}

uint64_t kernel_copy_hash(void *to, const void *from, size_t bytes) {
    if (bytes < stream_threshold) {
        if (bytes != 0) memcpy(to, from, bytes);
        return XXH3_64bits(to, bytes);
    }
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    auto *target = static_cast<char *>(to);
    auto *source = static_cast<const char *>(from);
    for (size_t at = 0; at < bytes; at += piece_bytes) {
        size_t n = bytes - at < piece_bytes ? bytes - at : piece_bytes;
        XXH3_64bits_update(&state, source + at, n);
        stream_piece(target + at, source + at, n);
    }
    STREAM_FENCE();
    return XXH3_64bits_digest(&state);
}

}  // namespace
