// SPDX-License-Identifier: Apache-2.0
#include "ckpt/hdf5_file.h"

#include <hdf5.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "ckpt/hdf5_group.h"
#include "ckpt/hdf5_memory.h"
#include "ckpt/hdf5_parts.h"
#include "ckpt/object_table.h"
#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

static_assert(std::is_same_v<hid_t, std::int64_t>, "HDF5 1.10 or newer");

herr_t take_description(unsigned, const H5E_error2_t *error, void *text) {
    if (error->desc != nullptr && *error->desc != '\0') *static_cast<std::string *>(text) = error->desc;
    return 0;
}

/// What HDF5 says about the call that just failed: its innermost sentence.
Status hdf5_error(const std::string &what) {
    std::string reason = "no reason given";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, take_description, &reason);
    H5Eclear2(H5E_DEFAULT);
    return Status(Code::system, what + ": HDF5: " + reason);
}

/// HDF5, ready for use by this thread. It prints what goes wrong unless told otherwise.
std::unique_lock<std::mutex> take_turn() {
    static std::mutex turns;
    std::unique_lock turn(turns);
    static const bool done = [] {
        H5dont_atexit();  // its cleaning up at exit falls over a file whose close has failed
        return H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
    }();
    (void)done;
    return turn;
}

bool write_attribute(hid_t object, const char *name, hid_t type, hid_t memory_type, hid_t space,
                     const void *value) {
    Hdf5Handle attribute(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    return attribute && (value == nullptr || H5Awrite(attribute.get(), memory_type, value) >= 0);
}

bool write_value(Hdf5Parts &parts, hid_t object, const char *name, std::uint64_t value) {
    return write_attribute(object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, parts.scalar(), &value);
}

bool write_value(Hdf5Parts &parts, hid_t object, const char *name, std::string_view value) {
    std::string text(value);
    const char *pointer = text.c_str();
    return write_attribute(object, name, parts.text(), parts.text(), parts.scalar(), &pointer);
}

bool write_value(Hdf5Parts &parts, hid_t object, const char *name, Shape value) {
    return write_attribute(object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, parts.vector(value.size()),
                           value.empty() ? nullptr : value.data());
}

Status write_attributes(Hdf5Parts &parts, hid_t object, Hdf5Attributes attributes) {
    for (const Hdf5Attribute &a : attributes)
        if (!std::visit([&](auto value) { return write_value(parts, object, a.name, value); }, a.value))
            return hdf5_error("attribute " + std::string(a.name));
    return {};
}

/// "/a/b" is "b" in the group "/a".
struct Place {
    std::string_view group;
    const char *name;
};

Place split(const std::string &path) {
    std::size_t slash = path.rfind('/');
    return {std::string_view(path).substr(0, std::max<std::size_t>(slash, 1)), path.c_str() + slash + 1};
}

}  // namespace

const char *dtype_name(DType type) noexcept {
    switch (type) {
        case DType::Bytes:
            return "bytes";
        case DType::Bool:
            return "bool";
        case DType::UInt8:
            return "uint8";
        case DType::Int8:
            return "int8";
        case DType::UInt16:
            return "uint16";
        case DType::Int16:
            return "int16";
        case DType::UInt32:
            return "uint32";
        case DType::Int32:
            return "int32";
        case DType::UInt64:
            return "uint64";
        case DType::Int64:
            return "int64";
        case DType::Float16:
            return "float16";
        case DType::BFloat16:
            return "bfloat16";
        case DType::Float32:
            return "float32";
        case DType::Float64:
            return "float64";
        case DType::Float8E4M3:
            return "float8_e4m3fn";
        case DType::Float8E5M2:
            return "float8_e5m2";
        case DType::Complex64:
            return "complex64";
        case DType::Complex128:
            return "complex128";
    }
    return "unknown";
}

Result<Hdf5File> Hdf5File::create(std::uint64_t user_block_bytes, std::uint64_t objects) {
    std::unique_lock turn = take_turn();
    UniqueFd memory(::memfd_create("dlrover-hdf5", MFD_CLOEXEC));
    if (!memory) return Status::from_errno("memory for an HDF5 file");
    Hdf5Handle plan(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    if (H5Pset_userblock(plan.get(), user_block_bytes) < 0 || H5Pset_obj_track_times(plan.get(), false) < 0)
        return hdf5_error("user block");
    Hdf5Handle access(hdf5_memory_access(memory.get(), objects), H5Pclose);
    if (!access) return hdf5_error("HDF5's options");
    hid_t file = H5Fcreate("memory", H5F_ACC_TRUNC, plan.get(), access.get());
    if (file < 0) return hdf5_error("a new file in memory");
    return Hdf5File(std::move(turn), std::move(memory), file);
}

Result<Hdf5File> Hdf5File::open(UniqueFd memory) {
    std::unique_lock turn = take_turn();
    Hdf5Handle access(hdf5_memory_access(memory.get(), 0), H5Pclose);
    if (!access) return hdf5_error("HDF5's options");
    hid_t file = H5Fopen("memory", H5F_ACC_RDWR, access.get());
    if (file < 0) return hdf5_error("a file in memory");
    return Hdf5File(std::move(turn), std::move(memory), file);
}

Hdf5File::Hdf5File(std::unique_lock<std::mutex> turn, UniqueFd memory, std::int64_t file)
    : turn_(std::move(turn)),
      memory_(std::move(memory)),
      file_(file),
      parts_(std::make_unique<Hdf5Parts>()) {}

Hdf5File::Hdf5File(Hdf5File &&other) noexcept
    : turn_(std::move(other.turn_)),
      memory_(std::move(other.memory_)),
      file_(std::exchange(other.file_, -1)),
      parts_(std::move(other.parts_)) {}

Hdf5File::~Hdf5File() {
    parts_.reset();
    if (file_ >= 0) H5Fclose(file_);
}

Status Hdf5File::add_group(const std::string &path) {
    Hdf5Handle plan(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
    if (H5Pset_obj_track_times(plan.get(), false) < 0) return hdf5_error(path);
    Hdf5Handle group(H5Gcreate2(file_, path.c_str(), H5P_DEFAULT, plan.get(), H5P_DEFAULT), H5Gclose);
    return group ? Status() : hdf5_error(path);
}

Result<Hdf5TypeBytes> Hdf5File::type_bytes() {
    Hdf5TypeBytes bytes;
    for (DType type : format::EnumValuesDType())
        if (!encode_hdf5_type(parts_->type(type), bytes.of[type])) return hdf5_error(dtype_name(type));
    if (!encode_hdf5_type(parts_->text(), bytes.text)) return hdf5_error("text");
    bytes.text[4] = 16;  // the element's length: in a file the text's length and place, in memory a pointer
    return bytes;
}

Status Hdf5File::skip(std::uint64_t from, std::uint64_t offset) {
    if (!hdf5_memory_skip(file_, from, offset))
        return Status(Code::internal, "HDF5 has taken more room than it should");
    return {};
}

Status Hdf5File::add_made_group(const char *name, const Hdf5Group &group) {
    DLROVER_TRY(
        write_at(memory_.get(), group.bytes().data(), group.bytes().size(), group.offset(), "HDF5's memory"));
    Hdf5Handle made(H5Oopen_by_addr(file_, group.address()), H5Oclose);
    if (!made || H5Olink(made.get(), file_, name, H5P_DEFAULT, H5P_DEFAULT) < 0) return hdf5_error(name);
    return {};
}

Status Hdf5File::add_attributes(Hdf5Attributes attributes) {
    hid_t root = parts_->group(file_, "/");
    if (root < 0) return hdf5_error("the root group");
    return write_attributes(*parts_, root, attributes);
}

Result<std::uint64_t> Hdf5File::create_dataset(const std::string &path, std::int64_t type, std::int64_t space,
                                               Hdf5Attributes attributes) {
    auto [group, name] = split(path);
    Hdf5Handle set(
        H5Dcreate2(parts_->group(file_, group), name, type, space, H5P_DEFAULT, parts_->plan(), H5P_DEFAULT),
        H5Dclose);
    if (!set) return hdf5_error(path);
    DLROVER_TRY(write_attributes(*parts_, set.get(), attributes));
    if (H5Sget_simple_extent_npoints(space) == 0) return std::uint64_t{0};
    haddr_t offset = H5Dget_offset(set.get());
    if (offset == HADDR_UNDEF) return hdf5_error(path);
    return std::uint64_t{offset};
}

Result<std::uint64_t> Hdf5File::add_dataset(const std::string &path, DType type, Shape shape,
                                            Hdf5Attributes attributes) {
    return create_dataset(path, parts_->type(type), parts_->space(shape), attributes);
}

Result<std::uint64_t> Hdf5File::add_text(const std::string &path, std::uint64_t bytes) {
    return create_dataset(path, make_hdf5_text_type(bytes).get(), parts_->scalar(), {});
}

Status Hdf5File::add_virtual(const std::string &path, DType type, Shape shape,
                             std::span<const Hdf5Piece> pieces, Hdf5Attributes attributes) {
    Hdf5Handle plan(H5Pcreate(H5P_DATASET_CREATE), H5Pclose), space = make_hdf5_space(shape);
    if (!plan || !space || H5Pset_obj_track_times(plan.get(), false) < 0) return hdf5_error(path);
    // What is read where a piece's file is missing: of floating point NaN, HDF5's own choice would be 0.
    std::array<std::uint8_t, 16> all_ones;
    all_ones.fill(0xff);
    if (H5Pset_fill_value(plan.get(), parts_->type(type), all_ones.data()) < 0) return hdf5_error(path);
    for (const Hdf5Piece &piece : pieces) {
        Hdf5Handle part = make_hdf5_space(shape);
        std::array<hsize_t, max_dims> start{}, count{};
        std::copy(piece.offset.begin(), piece.offset.end(), start.begin());
        std::copy(piece.shape.begin(), piece.shape.end(), count.begin());
        if (H5Sselect_hyperslab(part.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) < 0)
            return hdf5_error(path);
        if (H5Pset_virtual(plan.get(), part.get(), piece.file.c_str(), piece.path.c_str(),
                           parts_->space(piece.shape)) < 0)
            return hdf5_error(path);
    }
    auto [group, name] = split(path);
    Hdf5Handle set(H5Dcreate2(parts_->group(file_, group), name, parts_->type(type), space.get(), H5P_DEFAULT,
                              plan.get(), H5P_DEFAULT),
                   H5Dclose);
    if (!set) return hdf5_error(path);
    return write_attributes(*parts_, set.get(), attributes);
}

Status Hdf5File::add_link(const std::string &path, const std::string &file, const std::string &target) {
    auto [group, name] = split(path);
    if (H5Lcreate_external(file.c_str(), target.c_str(), parts_->group(file_, group), name, H5P_DEFAULT,
                           H5P_DEFAULT) < 0)
        return hdf5_error(path);
    return {};
}

Result<UniqueFd> Hdf5File::finish() {
    Status status;
    parts_.reset();
    if (H5Fclose(std::exchange(file_, -1)) < 0) status = hdf5_error("the end of a file in memory");
    turn_.unlock();
    if (!status.ok()) return status;
    return std::move(memory_);
}

}  // namespace dlrover::ckpt
