// SPDX-License-Identifier: Apache-2.0
#include "helper/outbox.h"

#include <sys/eventfd.h>

#include <utility>

namespace dlrover::helper {

Result<Outbox> Outbox::create() {
    UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) return Status::from_errno("eventfd");
    return Outbox(std::move(wake));
}

void Outbox::push(Answer answer) {
    std::lock_guard lock(*mutex_);
    answers_.push_back(std::move(answer));
    ::eventfd_write(wake_.get(), 1);
}

std::vector<Outbox::Answer> Outbox::take() {
    std::lock_guard lock(*mutex_);
    eventfd_t count;
    ::eventfd_read(wake_.get(), &count);
    return std::exchange(answers_, {});
}

}  // namespace dlrover::helper
