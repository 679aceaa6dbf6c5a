// SPDX-License-Identifier: Apache-2.0
// What Slurm's error numbers mean to us. Header only: for files that are compiled with Slurm's headers.
#pragma once

#include <slurm/slurm_errno.h>

#include <cerrno>

#include "base/status.h"

namespace dlrover {

inline Code code_of_slurm(int error) {
    switch (error) {
        case ESLURM_INVALID_JOB_ID:
        case ESLURM_INVALID_NODE_NAME:
            return Code::not_found;
        case ESLURM_ACCESS_DENIED:
        case ESLURM_USER_ID_MISSING:
            return Code::permission_denied;
        case ESLURM_ALREADY_DONE:
        case ESLURM_JOB_PENDING:  // somebody else has had it requeued
            return Code::stale;
        case SLURM_PROTOCOL_SOCKET_IMPL_TIMEOUT:
        case ETIMEDOUT:
            return Code::timeout;
        case SLURM_COMMUNICATIONS_CONNECTION_ERROR:
        case SLURM_COMMUNICATIONS_SEND_ERROR:
        case SLURM_COMMUNICATIONS_RECEIVE_ERROR:
        case SLURM_COMMUNICATIONS_SHUTDOWN_ERROR:
        case SLURM_PROTOCOL_SOCKET_IMPL_ZERO_RECV_LENGTH:
        case SLURMCTLD_COMMUNICATIONS_CONNECTION_ERROR:
        case SLURMCTLD_COMMUNICATIONS_SEND_ERROR:
        case SLURMCTLD_COMMUNICATIONS_RECEIVE_ERROR:
        case SLURMCTLD_COMMUNICATIONS_SHUTDOWN_ERROR:
        case ESLURM_IN_STANDBY_MODE:
            return Code::unavailable;
        default:
            // An errno: the connection. Anything else of Slurm's: it has refused.
            return error < 1000 ? Code::unavailable : Code::invalid_argument;
    }
}

}  // namespace dlrover
