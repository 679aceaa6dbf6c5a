# SPDX-License-Identifier: Apache-2.0
noinst_HEADERS += daemon/slurm.h
