// SPDX-License-Identifier: Apache-2.0
#include "ckpt/hdf5_parts.h"

#include <hdf5.h>

#include <algorithm>
#include <array>

#include "ckpt/object_table.h"

namespace dlrover::ckpt {
namespace {

static_assert(sizeof(hsize_t) == sizeof(std::uint64_t));

struct FloatLayout {
    std::size_t bytes, exponent_bits, mantissa_bits, bias;
};

/// IEEE's rules with other widths; little-endian.
Hdf5Handle make_float(FloatLayout layout) {
    Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    std::size_t sign = layout.exponent_bits + layout.mantissa_bits;
    if (H5Tset_fields(type.get(), sign, layout.mantissa_bits, layout.exponent_bits, 0, layout.mantissa_bits) <
            0 ||
        H5Tset_precision(type.get(), sign + 1) < 0 || H5Tset_size(type.get(), layout.bytes) < 0 ||
        H5Tset_ebias(type.get(), layout.bias) < 0)
        return Hdf5Handle(-1, H5Tclose);
    return type;
}

/// What h5py makes of numpy's bool.
Hdf5Handle make_bool() {
    Hdf5Handle type(H5Tenum_create(H5T_STD_I8LE), H5Tclose);
    std::int8_t no = 0, yes = 1;
    if (H5Tenum_insert(type.get(), "FALSE", &no) < 0 || H5Tenum_insert(type.get(), "TRUE", &yes) < 0)
        return Hdf5Handle(-1, H5Tclose);
    return type;
}

/// What h5py makes of numpy's complex numbers.
Hdf5Handle make_complex(hid_t part) {
    std::size_t bytes = H5Tget_size(part);
    Hdf5Handle type(H5Tcreate(H5T_COMPOUND, 2 * bytes), H5Tclose);
    if (H5Tinsert(type.get(), "r", 0, part) < 0 || H5Tinsert(type.get(), "i", bytes, part) < 0)
        return Hdf5Handle(-1, H5Tclose);
    return type;
}

Hdf5Handle copy_type(hid_t type) {
    return Hdf5Handle(H5Tcopy(type), H5Tclose);
}

/// The table of docs/format-storage.md.
Hdf5Handle make_type(DType type) {
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
    return Hdf5Handle(-1, H5Tclose);
}

Hdf5Handle make_plan() {
    Hdf5Handle plan(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (H5Pset_layout(plan.get(), H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(plan.get(), H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(plan.get(), H5D_FILL_TIME_NEVER) < 0 ||
        H5Pset_obj_track_times(plan.get(), false) < 0)
        return Hdf5Handle(-1, H5Pclose);
    return plan;
}

Hdf5Handle make_vector_space(std::size_t count) {
    hsize_t dims = count;
    return Hdf5Handle(H5Screate_simple(1, &dims, nullptr), H5Sclose);
}

template <typename Make>
hid_t once(Hdf5Handle &handle, Make make) {
    if (!handle) handle = make();
    return handle.get();
}

}  // namespace

Hdf5Handle make_hdf5_space(Shape shape) {
    if (shape.empty()) return Hdf5Handle(H5Screate(H5S_SCALAR), H5Sclose);
    std::array<hsize_t, max_dims> dims{};
    if (shape.size() > dims.size()) return Hdf5Handle(-1, H5Sclose);
    std::copy(shape.begin(), shape.end(), dims.begin());
    return Hdf5Handle(H5Screate_simple(static_cast<int>(shape.size()), dims.data(), nullptr), H5Sclose);
}

Hdf5Handle make_hdf5_text_type(std::size_t bytes) {
    Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    if (H5Tset_size(type.get(), bytes) < 0 || H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0 ||
        (bytes != H5T_VARIABLE && H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0))
        return Hdf5Handle(-1, H5Tclose);
    return type;
}

bool encode_hdf5_type(hid_t type, std::vector<std::uint8_t> &message) {
    constexpr std::size_t before = 2;  // what follows, and H5Tencode's version
    std::size_t bytes = 0;
    if (H5Tencode(type, nullptr, &bytes) < 0 || bytes <= before) return false;
    message.resize(bytes);
    if (H5Tencode(type, message.data(), &bytes) < 0) return false;
    message.erase(message.begin(), message.begin() + before);
    return true;
}

hid_t Hdf5Parts::plan() {
    return once(plan_, make_plan);
}

hid_t Hdf5Parts::text() {
    return once(text_, [] { return make_hdf5_text_type(H5T_VARIABLE); });
}

hid_t Hdf5Parts::scalar() {
    return once(scalar_, [] { return make_hdf5_space({}); });
}

hid_t Hdf5Parts::vector(std::size_t count) {
    return once(vectors_[count], [&] { return make_vector_space(count); });
}

hid_t Hdf5Parts::type(DType type) {
    return once(types_[type], [&] { return make_type(type); });
}

hid_t Hdf5Parts::space(Shape shape) {
    if (!space_ || !std::equal(shape.begin(), shape.end(), shape_.begin(), shape_.end())) {
        space_ = make_hdf5_space(shape);
        shape_.assign(shape.begin(), shape.end());
    }
    return space_.get();
}

hid_t Hdf5Parts::group(hid_t file, std::string_view path) {
    if (!group_ || path != group_path_) {
        group_path_ = path;
        group_ = Hdf5Handle(H5Gopen2(file, group_path_.c_str(), H5P_DEFAULT), H5Gclose);
    }
    return group_.get();
}

}  // namespace dlrover::ckpt
