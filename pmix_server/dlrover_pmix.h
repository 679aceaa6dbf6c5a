/* SPDX-License-Identifier: Apache-2.0 */
/* What dlrover-pmixd says beyond the PMIx standard: codes of events, names of values. See dlrover_pmix(3). */
#ifndef DLROVER_PMIX_H
#define DLROVER_PMIX_H

/* Codes of events. A handler has to be registered for the code. What programs send with these codes stays on their own node. */

/** This generation ends: the ranks are about to get SIGTERM. Carries DLROVER_PMIX_GENERATION of the one that ends, and DLROVER_PMIX_REASON. */
#define DLROVER_PMIX_EVENT_GENERATION (-3701)
/** A rank has ended by itself, and the generation will. Carries DLROVER_PMIX_RANK, DLROVER_PMIX_NODE and PMIX_EVENT_AFFECTED_PROC. */
#define DLROVER_PMIX_EVENT_RANK_LOST (-3702)
/** A node is lost, and the generation will end. Carries DLROVER_PMIX_NODE. */
#define DLROVER_PMIX_EVENT_NODE_LOST (-3703)
/** Every rank's checkpoint of DLROVER_PMIX_STEP has as many copies (or parities) on other nodes as were asked for. */
#define DLROVER_PMIX_EVENT_STEP_SAFE (-3704)
/** The whole checkpoint of DLROVER_PMIX_STEP is on storage. */
#define DLROVER_PMIX_EVENT_STEP_DURABLE (-3705)
/** Nodes have come or gone: the group has DLROVER_PMIX_NODE_COUNT of them now. */
#define DLROVER_PMIX_EVENT_ALLOCATION_CHANGED (-3706)
/** Slurm ends the job in DLROVER_PMIX_SECONDS (its time limit). Once, about two minutes before; again when the end was put off meanwhile. */
#define DLROVER_PMIX_EVENT_DRAINING (-3707)

/** From the first to the last one: kept for this suite. */
#define DLROVER_PMIX_EVENT_FIRST (-3799)
#define DLROVER_PMIX_EVENT_LAST (-3700)

/* Names of values in events. */

/** uint32_t: which rank. */
#define DLROVER_PMIX_RANK "dlrover.rank"
/** A string: which node, as in DLROVER_PMIX_NODES. */
#define DLROVER_PMIX_NODE "dlrover.node"
/** uint64_t: which training step. */
#define DLROVER_PMIX_STEP "dlrover.step"
/** uint32_t: how many nodes the group has, spares too. */
#define DLROVER_PMIX_NODE_COUNT "dlrover.node.count"
/** uint32_t: in how many seconds. */
#define DLROVER_PMIX_SECONDS "dlrover.seconds"
/** A string: why, for people. */
#define DLROVER_PMIX_REASON "dlrover.reason"

/* Names of values for PMIx_Query_info; the first one is in an event, too. */

/** A string, "TERM:NUMBER", as in the variable DLROVER_GENERATION. */
#define DLROVER_PMIX_GENERATION "dlrover.generation"
/** A string: the nodes of the world, in the order of their ranks, "n1,n2". */
#define DLROVER_PMIX_NODES "dlrover.nodes"
/** A string: how many ranks each of them has, "2,2". */
#define DLROVER_PMIX_RANKS "dlrover.ranks"
/** uint32_t: how many ranks there are. */
#define DLROVER_PMIX_WORLD_SIZE "dlrover.world.size"
/** uint64_t: the newest step of which there was DLROVER_PMIX_EVENT_STEP_SAFE. Not found: none is. */
#define DLROVER_PMIX_SAFE_STEP "dlrover.step.safe"
/** uint64_t: the newest step of which there was DLROVER_PMIX_EVENT_STEP_DURABLE, in this or a former generation. Not found: none is. */
#define DLROVER_PMIX_DURABLE_STEP "dlrover.step.durable"
/** double, from 0 to 1: of the job's time so far, the share in training steps that were not lost. Not found: no step is counted yet. */
#define DLROVER_PMIX_GOODPUT "dlrover.goodput"
/** A string, for people: why the last PMIx_Allocation_request or restart by PMIx_Job_control of a rank of this node was refused; of several ranks the newest. Not found: no rank's last one was. */
#define DLROVER_PMIX_REFUSAL "dlrover.refusal"

#endif
