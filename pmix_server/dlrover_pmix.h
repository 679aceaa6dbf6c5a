/* SPDX-License-Identifier: Apache-2.0 */
/* What dlrover-pmixd says beyond the PMIx standard: codes of events, names of values. See dlrover_pmix(3). */
#ifndef DLROVER_PMIX_H
#define DLROVER_PMIX_H

/* Codes of events. A handler has to be registered for the code. What programs send with these codes stays on their own node. */

/** This generation ends, a new one is coming: the ranks are about to get SIGTERM. Carries DLROVER_PMIX_GENERATION of the one that ends. */
#define DLROVER_PMIX_EVENT_GENERATION (-3701)

/** From the first to the last one: kept for this suite. */
#define DLROVER_PMIX_EVENT_FIRST (-3799)
#define DLROVER_PMIX_EVENT_LAST (-3700)

/* Names of values, in events and for PMIx_Query_info. */

/** A string, "TERM:NUMBER", as in the variable DLROVER_GENERATION. */
#define DLROVER_PMIX_GENERATION "dlrover.generation"
/** A string: the nodes of the world, in the order of their ranks, "n1,n2". */
#define DLROVER_PMIX_NODES "dlrover.nodes"
/** A string: how many ranks each of them has, "2,2". */
#define DLROVER_PMIX_RANKS "dlrover.ranks"
/** uint32_t: how many ranks there are. */
#define DLROVER_PMIX_WORLD_SIZE "dlrover.world.size"

#endif
