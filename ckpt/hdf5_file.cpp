// SPDX-License-Identifier: Apache-2.0
#include "ckpt/hdf5_file.h"

#include <hdf5.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <vector>

#include "ckpt/hdf5_memory.h"
#include "ckpt/object_table.h"

namespace dlrover::ckpt {
namespace {

static_assert(std::is_same_v<hid_t, std::int64_t>, "HDF5 1.10 or newer");
static_assert(sizeof(hsize_t) == sizeof(std::uint64_t));

/// One identifier of HDF5, closed at the end. Negative: none.
class Handle {
  public:
    using Close = herr_t (*)(hid_t);
    Handle(hid_t id, Close close) : id_(id), close_(close) {}
    Handle(Handle &&other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
    Handle &operator=(Handle &&) = delete;
    ~Handle() {
        if (id_ >= 0) close_(id_);
    }
    hid_t get() const noexcept { return id_; }
    explicit operator bool() const noexcept { return id_ >= 0; }

  private:
    hid_t id_;
    Close close_;
};

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

/// Before the first call. HDF5 prints what goes wrong unless told otherwise.
void set_up_library() {
    static const bool done = [] {
        H5dont_atexit();  // its cleaning up at exit falls over a file whose close has failed
        return H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
    }();
    (void)done;
}

struct FloatLayout {
    std::size_t bytes, exponent_bits, mantissa_bits, bias;
};

/// IEEE's rules with other widths; little-endian.
Handle make_float(FloatLayout layout) {
    Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    std::size_t sign = layout.exponent_bits + layout.mantissa_bits;
    if (H5Tset_fields(type.get(), sign, layout.mantissa_bits, layout.exponent_bits, 0, layout.mantissa_bits) <
            0 ||
        H5Tset_precision(type.get(), sign + 1) < 0 || H5Tset_size(type.get(), layout.bytes) < 0 ||
        H5Tset_ebias(type.get(), layout.bias) < 0)
        return Handle(-1, H5Tclose);
    return type;
}

/// What h5py makes of numpy's bool.
Handle make_bool() {
    Handle type(H5Tenum_create(H5T_STD_I8LE), H5Tclose);
    std::int8_t no = 0, yes = 1;
    if (H5Tenum_insert(type.get(), "FALSE", &no) < 0 || H5Tenum_insert(type.get(), "TRUE", &yes) < 0)
        return Handle(-1, H5Tclose);
    return type;
}

/// What h5py makes of numpy's complex numbers.
Handle make_complex(hid_t part) {
    std::size_t bytes = H5Tget_size(part);
    Handle type(H5Tcreate(H5T_COMPOUND, 2 * bytes), H5Tclose);
    if (H5Tinsert(type.get(), "r", 0, part) < 0 || H5Tinsert(type.get(), "i", bytes, part) < 0)
        return Handle(-1, H5Tclose);
    return type;
}

Handle copy_type(hid_t type) {
    return Handle(H5Tcopy(type), H5Tclose);
}

/// The table of docs/format-storage.md.
Handle make_type(DType type) {
    switch (type) {
        case DType::Bytes:
        case DType::UInt8:
        case DType::Float8E4M3:  // has no infinities: not by IEEE's rules
            return copy_type(H5T_STD_U8LE);
        case DType::Bool:
            return make_bool();
        case DType::Int8:
            return copy_type(H5T_STD_I8LE);
        case DType::UInt16:
            return copy_type(H5T_STD_U16LE);
        case DType::Int16:
            return copy_type(H5T_STD_I16LE);
        case DType::UInt32:
            return copy_type(H5T_STD_U32LE);
        case DType::Int32:
            return copy_type(H5T_STD_I32LE);
        case DType::UInt64:
            return copy_type(H5T_STD_U64LE);
        case DType::Int64:
            return copy_type(H5T_STD_I64LE);
        case DType::Float16:
            return make_float({2, 5, 10, 15});
        case DType::BFloat16:
            return make_float({2, 8, 7, 127});
        case DType::Float8E5M2:
            return make_float({1, 5, 2, 15});
        case DType::Float32:
            return copy_type(H5T_IEEE_F32LE);
        case DType::Float64:
            return copy_type(H5T_IEEE_F64LE);
        case DType::Complex64:
            return make_complex(H5T_IEEE_F32LE);
        case DType::Complex128:
            return make_complex(H5T_IEEE_F64LE);
    }
    return Handle(-1, H5Tclose);
}

Handle make_space(Shape shape) {
    if (shape.empty()) return Handle(H5Screate(H5S_SCALAR), H5Sclose);
    std::array<hsize_t, max_dims> dims{};
    if (shape.size() > dims.size()) return Handle(-1, H5Sclose);
    std::copy(shape.begin(), shape.end(), dims.begin());
    return Handle(H5Screate_simple(static_cast<int>(shape.size()), dims.data(), nullptr), H5Sclose);
}

Handle make_text_type(std::size_t bytes) {
    Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    if (H5Tset_size(type.get(), bytes) < 0 || H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0 ||
        (bytes != H5T_VARIABLE && H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0))
        return Handle(-1, H5Tclose);
    return type;
}

bool write_attribute(hid_t object, const char *name, hid_t type, hid_t memory_type, hid_t space,
                     const void *value) {
    Handle attribute(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    return attribute && (value == nullptr || H5Awrite(attribute.get(), memory_type, value) >= 0);
}

bool write_value(hid_t object, const char *name, std::uint64_t value) {
    Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    return write_attribute(object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, space.get(), &value);
}

bool write_value(hid_t object, const char *name, std::string_view value) {
    Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    Handle type = make_text_type(H5T_VARIABLE);
    std::string text(value);
    const char *pointer = text.c_str();
    return type && write_attribute(object, name, type.get(), type.get(), space.get(), &pointer);
}

bool write_value(hid_t object, const char *name, Shape value) {
    hsize_t count = value.size();
    Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
    return write_attribute(object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, space.get(),
                           value.empty() ? nullptr : value.data());
}

Status write_attributes(hid_t object, Hdf5Attributes attributes) {
    for (const Hdf5Attribute &a : attributes)
        if (!std::visit([&](auto value) { return write_value(object, a.name, value); }, a.value))
            return hdf5_error("attribute " + std::string(a.name));
    return {};
}

Handle contiguous_plan() {
    Handle plan(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (H5Pset_layout(plan.get(), H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(plan.get(), H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(plan.get(), H5D_FILL_TIME_NEVER) < 0 ||
        H5Pset_obj_track_times(plan.get(), false) < 0)
        return Handle(-1, H5Pclose);
    return plan;
}

Result<std::uint64_t> create_dataset(hid_t file, const std::string &path, const Handle &type,
                                     const Handle &space, Hdf5Attributes attributes) {
    Handle plan = contiguous_plan();
    if (!type || !space || !plan) return hdf5_error(path);
    Handle set(H5Dcreate2(file, path.c_str(), type.get(), space.get(), H5P_DEFAULT, plan.get(), H5P_DEFAULT),
               H5Dclose);
    if (!set) return hdf5_error(path);
    DLROVER_TRY(write_attributes(set.get(), attributes));
    if (H5Sget_simple_extent_npoints(space.get()) == 0) return std::uint64_t{0};
    haddr_t offset = H5Dget_offset(set.get());
    if (offset == HADDR_UNDEF) return hdf5_error(path);
    return std::uint64_t{offset};
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

Result<Hdf5File> Hdf5File::create(std::uint64_t user_block_bytes) {
    static std::mutex turns;
    std::unique_lock turn(turns);
    set_up_library();
    UniqueFd memory(::memfd_create("dlrover-hdf5", MFD_CLOEXEC));
    if (!memory) return Status::from_errno("memory for an HDF5 file");
    Handle plan(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    if (H5Pset_userblock(plan.get(), user_block_bytes) < 0) return hdf5_error("user block");
    Handle access(hdf5_memory_access(memory.get()), H5Pclose);
    if (!access) return hdf5_error("HDF5's options");
    hid_t file = H5Fcreate("memory", H5F_ACC_TRUNC, plan.get(), access.get());
    if (file < 0) return hdf5_error("a new file in memory");
    return Hdf5File(std::move(turn), std::move(memory), file);
}

Hdf5File::Hdf5File(Hdf5File &&other) noexcept
    : turn_(std::move(other.turn_)),
      memory_(std::move(other.memory_)),
      file_(std::exchange(other.file_, -1)) {}

Hdf5File::~Hdf5File() {
    if (file_ >= 0) H5Fclose(file_);
}

Status Hdf5File::add_group(const std::string &path) {
    Handle group(H5Gcreate2(file_, path.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
    return group ? Status() : hdf5_error(path);
}

Status Hdf5File::add_attributes(Hdf5Attributes attributes) {
    Handle root(H5Gopen2(file_, "/", H5P_DEFAULT), H5Gclose);
    if (!root) return hdf5_error("the root group");
    return write_attributes(root.get(), attributes);
}

Result<std::uint64_t> Hdf5File::add_dataset(const std::string &path, DType type, Shape shape,
                                            Hdf5Attributes attributes) {
    return create_dataset(file_, path, make_type(type), make_space(shape), attributes);
}

Result<std::uint64_t> Hdf5File::add_text(const std::string &path, std::uint64_t bytes) {
    return create_dataset(file_, path, make_text_type(bytes), make_space({}), {});
}

Status Hdf5File::add_virtual(const std::string &path, DType type, Shape shape,
                             std::span<const Hdf5Piece> pieces, Hdf5Attributes attributes) {
    Handle plan(H5Pcreate(H5P_DATASET_CREATE), H5Pclose), space = make_space(shape), kind = make_type(type);
    if (!plan || !space || !kind || H5Pset_obj_track_times(plan.get(), false) < 0) return hdf5_error(path);
    for (const Hdf5Piece &piece : pieces) {
        Handle source = make_space(piece.shape), part = make_space(shape);
        std::array<hsize_t, max_dims> start{}, count{};
        std::copy(piece.offset.begin(), piece.offset.end(), start.begin());
        std::copy(piece.shape.begin(), piece.shape.end(), count.begin());
        if (!source ||
            H5Sselect_hyperslab(part.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) < 0)
            return hdf5_error(path);
        if (H5Pset_virtual(plan.get(), part.get(), piece.file.c_str(), piece.path.c_str(), source.get()) < 0)
            return hdf5_error(path);
    }
    Handle set(H5Dcreate2(file_, path.c_str(), kind.get(), space.get(), H5P_DEFAULT, plan.get(), H5P_DEFAULT),
               H5Dclose);
    if (!set) return hdf5_error(path);
    return write_attributes(set.get(), attributes);
}

Status Hdf5File::add_link(const std::string &path, const std::string &file, const std::string &target) {
    if (H5Lcreate_external(file.c_str(), target.c_str(), file_, path.c_str(), H5P_DEFAULT, H5P_DEFAULT) < 0)
        return hdf5_error(path);
    return {};
}

Result<UniqueFd> Hdf5File::finish() {
    Status status;
    if (H5Fclose(std::exchange(file_, -1)) < 0) status = hdf5_error("the end of a file in memory");
    turn_.unlock();
    if (!status.ok()) return status;
    return std::move(memory_);
}

}  // namespace dlrover::ckpt
