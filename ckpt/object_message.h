// SPDX-License-Identifier: Apache-2.0
// The object that an order of the daemon is about.
#pragma once

#include <utility>

#include "ckpt/object_check.h"

namespace dlrover::ckpt {

/// Whose object `message` (ExpectObject, SendObject, FoldObject, VerifyObject) tells of, whatever its
/// lineage.
template <typename MessageT>
Result<ObjectIdentity> identity_in(const MessageT &message) {
    const auto &of = message.checkpoint;
    if (!of || !of->generation) return Status(Code::invalid_argument, "an order without its checkpoint");
    return ObjectIdentity{TrainStep(of->train_step),
                          Rank(message.rank),
                          of->world_size,
                          {Term(of->generation->term()), of->generation->number()},
                          {}};
}

template <typename MessageT>
Result<KnownObject> object_in(const MessageT &message) {
    auto who = identity_in(message);
    if (!who) return who.take_status();
    KnownObject object;
    object.who = std::move(*who);
    object.place = {message.data_bytes, message.table_offset, message.table_bytes, message.table_xxh3};
    return object;
}

}  // namespace dlrover::ckpt
