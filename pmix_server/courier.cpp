// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/courier.h"

#include <algorithm>

namespace dlrover::pmix {

using Kind = proto::pmix::ParcelKind;

Status Courier::send(Time now, std::uint32_t to, Letter letter) {
    Outgoing &out = outgoing_[to];
    if (out.queued_bytes + letter->size() > max_queued_bytes)
        return Status(Code::resource_exhausted, "too much waits for place " + std::to_string(to));
    out.queued_bytes += letter->size();
    out.letters.push_back(std::move(letter));
    advance(now, to, out);
    return {};
}

std::size_t Courier::bytes_under_way(const Outgoing &out) {
    std::size_t bytes = out.sent.at;
    for (std::uint64_t i = out.acknowledged.message; i < out.sent.message; ++i)
        bytes += out.letters[i - out.acknowledged.message]->size();
    return bytes - out.acknowledged.at;
}

/// As far as the window goes.
void Courier::advance(Time now, std::uint32_t to, Outgoing &out) {
    for (std::size_t under_way = bytes_under_way(out); under_way < window_bytes;) {
        std::uint64_t index = out.sent.message - out.acknowledged.message;
        if (index >= out.letters.size()) break;
        const proto::Bytes &letter = *out.letters[index];
        Parcel piece;
        piece.kind = Kind::Piece;
        piece.message = out.sent.message;
        piece.at = out.sent.at;
        piece.total = static_cast<std::uint32_t>(letter.size());
        std::size_t size = std::min(letter.size() - piece.at, max_piece_bytes);
        auto first = letter.begin() + piece.at;
        piece.bytes.assign(first, first + static_cast<std::ptrdiff_t>(size));
        under_way += size;
        out.sent.at += static_cast<std::uint32_t>(size);
        if (out.sent.at == letter.size()) out.sent = {out.sent.message + 1, 0};
        hooks_.send(to, piece);
    }
    if (out.letters.empty())
        out.due = Time::max();
    else if (out.due == Time::max())
        out.due = now + out.patience;
}

void Courier::receive(Time now, std::uint32_t from, const Parcel &parcel) {
    if (parcel.kind == Kind::Piece) return on_piece(from, parcel);
    if (parcel.kind == Kind::Received) on_received(now, from, parcel);
}

/// What is not the next piece was lost before, or comes again: whoever sent it hears how far this side is.
void Courier::on_piece(std::uint32_t from, const Parcel &piece) {
    Incoming &in = incoming_[from];
    bool whole = false;
    if (piece.message == in.message && piece.at == in.bytes.size()) {
        in.bytes.insert(in.bytes.end(), piece.bytes.begin(), piece.bytes.end());
        whole = in.bytes.size() == piece.total;
    }
    proto::Bytes message;
    if (whole) {
        message.swap(in.bytes);
        ++in.message;
    }
    greet(from);
    if (whole) hooks_.arrived(from, message);
}

void Courier::on_received(Time now, std::uint32_t from, const Parcel &parcel) {
    auto it = outgoing_.find(from);
    if (it == outgoing_.end()) return;
    Outgoing &out = it->second;
    Position reached{parcel.message, parcel.at};
    // Also after sending again: what the other side has needs not be sent.
    Position last{out.acknowledged.message + out.letters.size(), 0};
    if (reached == out.acknowledged) return on_nothing_new(now, from, out);
    if (reached < out.acknowledged || reached > last) return;
    if (reached < last && reached.at >= out.letters[reached.message - out.acknowledged.message]->size())
        return;
    while (out.acknowledged.message < reached.message) {
        out.queued_bytes -= out.letters.front()->size();
        out.letters.pop_front();
        ++out.acknowledged.message;
    }
    out.acknowledged = reached;
    out.sent = std::max(out.sent, reached);
    out.patience = first_patience;
    out.due = Time::max();
    advance(now, from, out);
}

/// A later piece has come, or that side has just begun: what it lacks was lost. But each piece that comes
/// twice is answered so, too.
void Courier::on_nothing_new(Time now, std::uint32_t to, Outgoing &out) {
    bool may_be_twice = out.sent_again && out.acknowledged <= *out.sent_again;
    if (out.letters.empty() || may_be_twice) return;
    send_again(now, to, out);
}

void Courier::send_again(Time now, std::uint32_t to, Outgoing &out) {
    out.sent_again = std::max(out.sent_again.value_or(out.sent), out.sent);
    out.sent = out.acknowledged;
    out.due = Time::max();
    advance(now, to, out);
}

void Courier::greet(std::uint32_t to) {
    const Incoming &in = incoming_[to];
    Parcel word;
    word.kind = Kind::Received;
    word.message = in.message;
    word.at = static_cast<std::uint32_t>(in.bytes.size());
    hooks_.send(to, word);
}

void Courier::tick(Time now) {
    for (auto &[to, out] : outgoing_) {
        if (out.due > now) continue;
        out.patience = std::min(2 * out.patience, longest_patience);
        send_again(now, to, out);
    }
}

Time Courier::next_tick() const {
    Time next = Time::max();
    for (const auto &[to, out] : outgoing_) next = std::min(next, out.due);
    return next;
}

}  // namespace dlrover::pmix
