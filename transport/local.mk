# SPDX-License-Identifier: Apache-2.0
noinst_HEADERS += transport/peer_network.h
