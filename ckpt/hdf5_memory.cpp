// SPDX-License-Identifier: Apache-2.0
#include "ckpt/hdf5_memory.h"

#include <hdf5.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

constexpr hsize_t aligned_from_bytes = 65536, alignment_bytes = 4096;
constexpr std::uint64_t note_bytes = 64, least_block_bytes = 2048, most_block_bytes = 1u << 20;
constexpr char memory_name[] = "HDF5's memory";

struct MemoryInfo {
    int fd;
};

/// HDF5 casts between the two: `base` comes first.
struct MemoryFile {
    H5FD_t base;
    int fd;
    haddr_t end_of_addresses;
};

MemoryFile *ours(H5FD_t *file) {
    return reinterpret_cast<MemoryFile *>(file);
}

H5FD_t *open_memory(const char *, unsigned, hid_t access, haddr_t) {
    auto *info = static_cast<const MemoryInfo *>(H5Pget_driver_info(access));
    auto *file = info == nullptr ? nullptr : static_cast<MemoryFile *>(std::calloc(1, sizeof(MemoryFile)));
    if (file == nullptr) return nullptr;
    file->fd = info->fd;
    return &file->base;
}

herr_t close_memory(H5FD_t *file) {
    std::free(ours(file));
    return 0;
}

herr_t query_memory(const H5FD_t *, unsigned long *flags) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

haddr_t memory_eoa(const H5FD_t *file, H5FD_mem_t) {
    return reinterpret_cast<const MemoryFile *>(file)->end_of_addresses;
}

herr_t set_memory_eoa(H5FD_t *file, H5FD_mem_t, haddr_t end) {
    ours(file)->end_of_addresses = end;
    return 0;
}

haddr_t memory_eof(const H5FD_t *file, H5FD_mem_t) {
    auto bytes = file_size(reinterpret_cast<const MemoryFile *>(file)->fd, memory_name);
    return bytes.ok() ? *bytes : HADDR_UNDEF;
}

/// What lies beyond the end reads as zeros.
herr_t read_memory(H5FD_t *file, H5FD_mem_t, hid_t, haddr_t offset, std::size_t bytes, void *buffer) {
    haddr_t end = memory_eof(file, H5FD_MEM_DEFAULT);
    if (end < offset + bytes && ::ftruncate(ours(file)->fd, static_cast<off_t>(offset + bytes)) != 0)
        return -1;
    return read_at(ours(file)->fd, buffer, bytes, offset, memory_name).ok() ? 0 : -1;
}

herr_t write_memory(H5FD_t *file, H5FD_mem_t, hid_t, haddr_t offset, std::size_t bytes, const void *data) {
    return write_at(ours(file)->fd, data, bytes, offset, memory_name).ok() ? 0 : -1;
}

herr_t truncate_memory(H5FD_t *file, hid_t, hbool_t) {
    return ::ftruncate(ours(file)->fd, static_cast<off_t>(ours(file)->end_of_addresses));
}

herr_t handle_of(H5FD_t *file, hid_t, void **handle) {
    *handle = file;
    return 0;
}

H5FD_class_t memory_driver() {
    H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
    driver.version = H5FD_CLASS_VERSION;
    driver.value = static_cast<H5FD_class_value_t>(0x444c52);
#endif
    driver.name = "dlrover-memory";
    driver.maxaddr = INT64_MAX;
    driver.fc_degree = H5F_CLOSE_STRONG;
    driver.fapl_size = sizeof(MemoryInfo);
    driver.open = open_memory;
    driver.close = close_memory;
    driver.query = query_memory;
    driver.get_eoa = memory_eoa;
    driver.set_eoa = set_memory_eoa;
    driver.get_eof = memory_eof;
    driver.get_handle = handle_of;
    driver.read = read_memory;
    driver.write = write_memory;
    driver.truncate = truncate_memory;
    for (auto &kind : driver.fl_map) kind = H5FD_MEM_DEFAULT;
    return driver;
}

herr_t set_bounds(hid_t access) {
#if H5_VERSION_GE(1, 10, 2)
    return H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V110);
#else
    return H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
#endif
}

/// Of HDF5's own: few stretches between many datasets, and little unused in a file with few.
hsize_t block_bytes(std::uint64_t objects) {
    return std::clamp(std::bit_ceil(objects * note_bytes), least_block_bytes, most_block_bytes);
}

}  // namespace

std::int64_t hdf5_memory_access(int fd, std::uint64_t objects) {
    static const H5FD_class_t driver = memory_driver();
    static const hid_t number = H5FDregister(&driver);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    MemoryInfo info{fd};
    if (number >= 0 && H5Pset_driver(access, number, &info) >= 0 && set_bounds(access) >= 0 &&
        H5Pset_alignment(access, aligned_from_bytes, alignment_bytes) >= 0 &&
        H5Pset_meta_block_size(access, block_bytes(objects)) >= 0)
        return access;
    H5Pclose(access);
    return -1;
}

/// HDF5 asks for the end of addresses whenever it needs room that it has not set apart.
bool hdf5_memory_skip(std::int64_t file, std::uint64_t from, std::uint64_t offset) {
    void *handle = nullptr;
    if (H5Fget_vfd_handle(file, H5P_DEFAULT, &handle) < 0) return false;
    auto *memory = static_cast<MemoryFile *>(handle);
    if (memory->end_of_addresses > from || from > offset) return false;
    memory->end_of_addresses = offset;
    return true;
}

}  // namespace dlrover::ckpt
