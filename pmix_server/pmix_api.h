// SPDX-License-Identifier: Apache-2.0
// The one place where PMIx's own headers come in.
#pragma once

#include <pmix.h>
#include <pmix_server.h>
