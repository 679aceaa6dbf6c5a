# SPDX-License-Identifier: Apache-2.0
"""The codes of our own events of PMIx, as the header has them."""

import pathlib
import re

HEADER = pathlib.Path(__file__).resolve().parents[2] / "pmix_server" / "dlrover_pmix.h"


def event_code(name: str) -> int:
    return int(re.search(rf"#define DLROVER_PMIX_EVENT_{name} \((-\d+)\)", HEADER.read_text())[1])
