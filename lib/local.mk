# SPDX-License-Identifier: Apache-2.0
include_HEADERS += lib/dlrover.h
