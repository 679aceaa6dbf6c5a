# SPDX-License-Identifier: Apache-2.0
dist_noinst_SCRIPTS += contrib/format
