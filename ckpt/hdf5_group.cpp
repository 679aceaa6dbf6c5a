// SPDX-License-Identifier: Apache-2.0
#include "ckpt/hdf5_group.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t nowhere = UINT64_MAX;
constexpr std::size_t unit = 8;  // messages, texts and names fill multiples of it

// Messages of an object header.
constexpr std::uint64_t space_message = 1, type_message = 3, fill_message = 5, layout_message = 8,
                        attribute_message = 12, symbols_message = 17;
constexpr std::uint64_t constant = 1;  // flag of a message

constexpr std::size_t header_prefix_bytes = 16, message_prefix_bytes = 8;
constexpr std::size_t texts_bytes = 16384;  // of a collection, unless one text needs more
constexpr std::size_t texts_prefix_bytes = 16, text_prefix_bytes = 16;
// Without other words in the superblock, HDF5 takes these.
constexpr std::size_t symbols_of_node = 8, children_of_node = 32;
constexpr std::size_t symbol_bytes = 40;

constexpr std::size_t round_up(std::size_t bytes) {
    return (bytes + unit - 1) / unit * unit;
}

}  // namespace

void Hdf5Group::put(std::uint64_t value, std::size_t bytes) {
    std::size_t at = bytes_.size();
    bytes_.resize(at + bytes);
    set(at, value, bytes);
}

void Hdf5Group::set(std::size_t at, std::uint64_t value, std::size_t bytes) {
    static_assert(std::endian::native == std::endian::little, "the format is little-endian");
    std::memcpy(bytes_.data() + at, &value, bytes);
}

void Hdf5Group::fill_up() {
    bytes_.resize(round_up(bytes_.size()));
}

std::size_t Hdf5Group::begin_header(std::uint64_t links) {
    std::size_t at = bytes_.size();
    put(1, 2);  // version
    put(0, 2);  // number of messages
    put(links, 4);
    put(0, 8);  // length of the messages, and padding
    return at;
}

void Hdf5Group::end_header(std::size_t at, std::uint64_t messages) {
    set(at + 2, messages, 2);
    set(at + 8, bytes_.size() - at - header_prefix_bytes, 4);
}

std::size_t Hdf5Group::begin_message(std::uint64_t kind, std::uint64_t flags) {
    std::size_t at = bytes_.size();
    put(kind, 2);
    put(0, 2);  // length
    put(flags, 4);
    return at;
}

void Hdf5Group::end_message(std::size_t at) {
    fill_up();
    set(at + 2, bytes_.size() - at - message_prefix_bytes, 2);
}

/// Version 2, without largest dimensions.
void Hdf5Group::put_space(Shape shape) {
    put(2, 1);
    put(shape.size(), 2);
    put(shape.empty() ? 0 : 1, 1);
    for (std::uint64_t n : shape) put(n, 8);
}

/// A collection (of the "global heap") starts anew.
void Hdf5Group::open_texts(std::size_t room) {
    close_texts();
    std::size_t bytes = std::max(texts_bytes, texts_prefix_bytes + room);
    texts_ = bytes_.size();
    put(std::string_view("GCOL"));
    put(1, 4);
    put(bytes, 8);
    texts_at_ = bytes_.size();
    texts_end_ = texts_ + bytes;
    text_number_ = 0;
    bytes_.resize(texts_end_);
}

/// What is free in it is its object 0, if there is room to say so.
void Hdf5Group::close_texts() {
    std::size_t free = texts_end_ - texts_at_;
    if (free >= text_prefix_bytes) set(texts_at_ + 8, free, 8);
    texts_at_ = texts_end_;
}

/// The place of the text is where an attribute's value is expected: length, collection, number in it.
void Hdf5Group::put_text(std::string_view text) {
    std::uint64_t collection = 0, number = 0;
    if (!text.empty()) {
        collection = base_ + texts_;
        number = ++text_number_;
        set(texts_at_, number, 2);
        set(texts_at_ + 8, text.size(), 8);
        std::copy(text.begin(), text.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(texts_at_ + 16));
        texts_at_ += text_prefix_bytes + round_up(text.size());
    }
    put(text.size(), 4);
    put(collection, 8);
    put(number, 4);
}

/// Version 3.
void Hdf5Group::put_attribute(const Hdf5Attribute &attribute) {
    const auto *text = std::get_if<std::string_view>(&attribute.value);
    const auto *list = std::get_if<Shape>(&attribute.value);
    const auto &type = text != nullptr ? types_.text : types_.of.at(DType::UInt64);
    const std::uint64_t count = list != nullptr ? list->size() : 0;
    const Shape shape = list != nullptr ? Shape(&count, 1) : Shape();
    std::string_view name = attribute.name;
    std::size_t at = begin_message(attribute_message, 0);
    put(3, 2);
    put(name.size() + 1, 2);
    put(type.size(), 2);
    put(4 + 8 * shape.size(), 2);
    put(0, 1);
    put(name);
    put(0, 1);
    put(type);
    put_space(shape);
    if (text != nullptr) put_text(*text);
    if (list != nullptr)
        for (std::uint64_t n : *list) put(n, 8);
    if (const auto *number = std::get_if<std::uint64_t>(&attribute.value)) put(*number, 8);
    end_message(at);
}

void Hdf5Group::add(const Hdf5Dataset &dataset) {
    std::size_t room = 0;
    for (const Hdf5Attribute &attribute : dataset.attributes)
        if (const auto *text = std::get_if<std::string_view>(&attribute.value))
            room += text_prefix_bytes + round_up(text->size());
    if (room > texts_end_ - texts_at_) open_texts(room);
    members_.push_back({std::string(dataset.name), here()});
    std::size_t header = begin_header(1), at = begin_message(space_message, 0);
    put_space(dataset.shape);
    end_message(at);
    at = begin_message(type_message, constant);
    put(types_.of.at(dataset.type));
    end_message(at);
    at = begin_message(fill_message, constant);
    put(3, 1);
    put(5, 1);  // has its place from the start, is never filled
    end_message(at);
    at = begin_message(layout_message, 0);
    put(3, 1);
    put(1, 1);  // contiguous
    put(dataset.bytes == 0 ? nowhere : dataset.offset - (offset_ - base_), 8);
    put(dataset.bytes, 8);
    end_message(at);
    for (const Hdf5Attribute &attribute : dataset.attributes) put_attribute(attribute);
    end_header(header, 4 + dataset.attributes.size());
}

/// The group's heap of names; the empty one comes first. Returns its address.
std::uint64_t Hdf5Group::put_names() {
    std::uint64_t heap = here(), content = unit;
    for (Member &member : members_) {
        member.name_at = content;
        content += round_up(member.name.size() + 1);
    }
    put(std::string_view("HEAP"));
    put(0, 4);
    put(content, 8);
    put(1, 8);  // nothing is free
    put(here() + 8, 8);
    put(0, unit);
    for (const Member &member : members_) {
        put(member.name);
        put(0, 1);
        fill_up();
    }
    return heap;
}

/// Nodes of up to 8 members each, in the order of names. All nodes are of one length.
std::vector<Hdf5Group::Node> Hdf5Group::put_symbols() {
    std::vector<Node> nodes;
    for (std::size_t first = 0; first < members_.size(); first += symbols_of_node) {
        std::size_t count = std::min(symbols_of_node, members_.size() - first), at = bytes_.size();
        nodes.push_back({here(), members_[first + count - 1].name_at});
        put(std::string_view("SNOD"));
        put(1, 2);
        put(count, 2);
        for (std::size_t i = first; i < first + count; ++i) {
            put(members_[i].name_at, 8);
            put(members_[i].header, 8);
            bytes_.resize(bytes_.size() + symbol_bytes - 16);
        }
        bytes_.resize(at + unit + symbols_of_node * symbol_bytes);
    }
    return nodes;
}

/// One level of the tree: between a node's children stand names, each the last one of the child before it.
std::vector<Hdf5Group::Node> Hdf5Group::put_level(const std::vector<Node> &below, std::uint64_t level) {
    constexpr std::size_t node_bytes = 24 + (2 * children_of_node + 1) * 8;
    std::size_t count = std::max<std::size_t>(1, (below.size() + children_of_node - 1) / children_of_node);
    std::uint64_t start = here();
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < count; ++i) {
        std::size_t at = bytes_.size(), first = i * children_of_node,
                    end = std::min(below.size(), first + children_of_node);
        put(std::string_view("TREE"));
        put(0, 1);  // of a group
        put(level, 1);
        put(end - first, 2);
        put(i == 0 ? nowhere : start + (i - 1) * node_bytes, 8);
        put(i + 1 == count ? nowhere : start + (i + 1) * node_bytes, 8);
        put(first == 0 ? 0 : below[first - 1].last_name, 8);
        for (std::size_t child = first; child < end; ++child) {
            put(below[child].address, 8);
            put(below[child].last_name, 8);
        }
        nodes.push_back({start + i * node_bytes, end == 0 ? 0 : below[end - 1].last_name});
        bytes_.resize(at + node_bytes);
    }
    return nodes;
}

void Hdf5Group::finish() {
    close_texts();
    std::sort(members_.begin(), members_.end(), [](auto &a, auto &b) { return a.name < b.name; });
    std::uint64_t names = put_names();
    std::vector<Node> nodes = put_level(put_symbols(), 0);
    for (std::uint64_t level = 1; nodes.size() > 1; ++level) nodes = put_level(nodes, level);
    address_ = here();
    std::size_t header = begin_header(0), at = begin_message(symbols_message, 0);
    put(nodes.front().address, 8);
    put(names, 8);
    end_message(at);
    end_header(header, 1);
    members_.clear();
}

}  // namespace dlrover::ckpt
