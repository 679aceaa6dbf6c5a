# SPDX-License-Identifier: Apache-2.0
"""A real Slurm cluster of virtual nodes on one machine (see docs/minicluster.md)."""


class Failure(Exception):
    """An error the user can act on; its text is shown as it stands."""
