# SPDX-License-Identifier: Apache-2.0
EXTRA_DIST += docs/internals.md
