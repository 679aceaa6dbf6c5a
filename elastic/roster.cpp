// SPDX-License-Identifier: Apache-2.0
#include "elastic/member_state.h"

namespace dlrover::elastic {

void Member::State::on_offer(const NodeOffered &) {}

void Member::State::on_coming(std::uint32_t) {}

}  // namespace dlrover::elastic
