// SPDX-License-Identifier: Apache-2.0
#include "proto/message_tree.h"

#include <algorithm>

#include "flatbuffers/minireflect.h"

namespace dlrover::proto {
namespace {

namespace fb = flatbuffers;

/// Where an offset leads to.
const std::uint8_t *follow(const std::uint8_t *offset) {
    return offset + fb::ReadScalar<fb::uoffset_t>(offset);
}

const fb::Table &table_at(const std::uint8_t *place) {
    return *reinterpret_cast<const fb::Table *>(place);
}

class Walk {
  public:
    explicit Walk(std::size_t bytes) : left_(bytes) {}

    bool table(const fb::Table &table, const fb::TypeTable &type) {
        const std::uint8_t *before = nullptr;  // of a union: which table it is
        for (std::size_t i = 0; i < type.num_elems; ++i) {
            const std::uint8_t *value =
                table.GetAddressOf(fb::FieldIndexToOffset(static_cast<fb::voffset_t>(i)));
            if (value != nullptr && !field(value, before, type, type.type_codes[i])) return false;
            before = value;
        }
        return true;
    }

  private:
    static const fb::TypeTable *referred(const fb::TypeTable &of, const fb::TypeCode &code) {
        return code.sequence_ref < 0 ? nullptr : of.type_refs[code.sequence_ref]();
    }

    bool field(const std::uint8_t *value, const std::uint8_t *before, const fb::TypeTable &of,
               const fb::TypeCode &code) {
        const fb::TypeTable *type = referred(of, code);
        if (code.is_repeating)
            return vector(follow(value), static_cast<fb::ElementaryType>(code.base_type), type);
        if (code.base_type == fb::ET_STRING) return string(follow(value));
        if (code.base_type != fb::ET_SEQUENCE || type->st == fb::ST_STRUCT) return true;
        if (type->st == fb::ST_UNION) return before != nullptr && united(follow(value), *before, *type);
        return table(table_at(follow(value)), *type);
    }

    /// The schemas have unions of tables alone, numbered from 0.
    bool united(const std::uint8_t *value, std::uint8_t which, const fb::TypeTable &type) {
        if (which >= type.num_elems) return true;  // of a later version: it is not unpacked
        const fb::TypeTable *member = referred(type, type.type_codes[which]);
        return member == nullptr || table(table_at(value), *member);
    }

    bool vector(const std::uint8_t *vector, fb::ElementaryType kind, const fb::TypeTable *type) {
        std::size_t count = fb::ReadScalar<fb::uoffset_t>(vector);
        const std::uint8_t *element = vector + sizeof(fb::uoffset_t);
        bool tables = kind == fb::ET_SEQUENCE && type->st != fb::ST_STRUCT;
        if (tables && type->st != fb::ST_TABLE) return false;  // of unions: in no schema
        std::size_t size =
            tables || kind == fb::ET_STRING ? sizeof(fb::uoffset_t) : fb::InlineSize(kind, type);
        if (!spend(count, size)) return false;
        for (std::size_t i = 0; i < count && (tables || kind == fb::ET_STRING); ++i, element += size)
            if (tables ? !table(table_at(follow(element)), *type) : !string(follow(element))) return false;
        return true;
    }

    bool string(const std::uint8_t *string) { return spend(fb::ReadScalar<fb::uoffset_t>(string), 1); }

    bool spend(std::size_t count, std::size_t size) {
        if (size != 0 && count > left_ / size) return false;
        left_ -= count * size;
        return true;
    }

    std::size_t left_;
};

}  // namespace

bool is_tree(const fb::Table &root, const fb::TypeTable &type, std::size_t message_bytes) {
    return Walk(message_bytes).table(root, type);
}

}  // namespace dlrover::proto
