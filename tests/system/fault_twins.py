# SPDX-License-Identifier: Apache-2.0
"""Points of failure of programs that are not started by a test: an installation with the twins of dlroverd and dlrover-agent that
`make fault-programs` makes, and the orders by which they die while they run."""

import pathlib

#: Passed again and again while a group trains.
DAEMON_POINTS = (
    "daemon_before_grant_record", "daemon_before_grant_reply", "daemon_grant_replied", "daemon_reuse_told",
    "daemon_seal_received", "daemon_before_seal_record", "daemon_seal_on_record", "daemon_seal_told", "daemon_seal_replied",
    "daemon_step_counted", "daemon_step_told", "daemon_before_complete_record", "daemon_complete_on_record",
    "daemon_before_slots_freed", "daemon_slots_freed",
    "daemon_before_flush_order", "daemon_flush_ordered", "daemon_flush_received", "daemon_before_writer_told", "daemon_writer_told",
    "daemon_object_stored", "daemon_part_stored", "daemon_part_told",
    "daemon_before_commit_order", "daemon_commit_ordered", "daemon_before_stored_noted", "daemon_stored_noted", "daemon_events_on_record")
#: Where the group's workers come back.
DAEMON_RESTART_POINTS = ("daemon_before_world_record", "daemon_world_on_record", "daemon_slots_rewound", "daemon_restore_asked",
                         "daemon_restore_replied", "daemon_restored")
#: What the leader does, or rank 0's node; the others are passed on each node.
ONE_NODE_POINTS = ("daemon_step_counted", "daemon_step_told", "daemon_before_flush_order", "daemon_flush_ordered", "daemon_part_told",
                   "daemon_before_commit_order", "daemon_commit_ordered", "daemon_before_stored_noted", "daemon_stored_noted")
#: From a worker's end to the next one's start.
AGENT_RESTART_POINTS = ("agent_worker_ended", "agent_end_told", "agent_stop_received", "agent_workers_gone", "agent_world_received",
                        "agent_before_start", "agent_worker_started", "agent_start_told", "agent_verify_begun", "agent_object_verified")
RESTART_POINTS = DAEMON_RESTART_POINTS + AGENT_RESTART_POINTS
#: Where a writer has died.
HELPER_POINTS = ("guard_helper_ended",)
AGENT_END_POINTS = ("agent_end_signal", "agent_signal_passed", "agent_ending", "agent_before_exit")
GUARD_END_POINTS = ("guard_before_signal", "guard_signal_passed", "guard_agent_ended", "guard_before_exit")
#: Once the job is told to end.
END_POINTS = AGENT_END_POINTS + GUARD_END_POINTS
#: Where the group's last checkpoint is on storage.
LAST_STORED_POINTS = ("agent_before_exit", "guard_agent_ended", "guard_before_exit")
POINTS = {"daemon": DAEMON_POINTS + DAEMON_RESTART_POINTS, "agent": AGENT_RESTART_POINTS + AGENT_END_POINTS,
          "guard": HELPER_POINTS + GUARD_END_POINTS}
#: Guard and agent are one program.
PROGRAMS = {"daemon": "dlroverd", "agent": "dlrover-agent", "guard": "dlrover-agent"}

KEEPER = """#!/bin/sh
DLROVER_FAULT_ORDER={orders}/daemon
export DLROVER_FAULT_ORDER
exec {installed}/sbin/dlrover-keeper --daemon {faults}/dlroverd "$@"
"""


class Orders:
    """Orders to die at a point, one at a time for daemons, one for agents and guards."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o777)  # a user's agent takes them, too

    def path(self, program: str) -> pathlib.Path:
        return self.folder / ("daemon" if program == "daemon" else "agent")

    def give(self, program: str, point: str, node: str) -> None:
        """To who passes the point first, on that node ("": on any)."""
        place(self.path(program), f"{point} {node}".strip())

    def taken(self, program: str) -> "tuple[str, int] | None":
        """Who has taken it: node, and pid there. It is told once."""
        for path in self.folder.glob(f"{self.path(program).name}.*.*"):
            _, node, pid = path.name.split(".")
            path.unlink()
            return node, int(pid)
        return None


class Installation:
    """The one under test, but for dlroverd and dlrover-agent."""

    def __init__(self, folder: pathlib.Path, installed: pathlib.Path, faults: pathlib.Path) -> None:
        folder.chmod(0o755)
        self.orders = Orders(folder / "orders")
        self.prefix = folder / "prefix"
        share = pathlib.Path("share") / "dlrover-slurm"
        link_all(installed, self.prefix, but=("sbin", "share"))
        link_all(installed / "share", self.prefix / "share", but=(share.name,))
        link_all(installed / share, self.prefix / share, but=("plugstack.conf",))
        link_all(installed / "sbin", self.prefix / "sbin", but=("dlroverd", "dlrover-keeper"))
        line = (installed / share / "plugstack.conf").read_text().strip()
        (self.prefix / share / "plugstack.conf").write_text(f"{line} agent={faults / 'dlrover-agent'}\n")
        (self.prefix / "sbin" / "dlroverd").symlink_to(faults / "dlroverd")
        keeper = self.prefix / "sbin" / "dlrover-keeper"
        keeper.write_text(KEEPER.format(orders=self.orders.folder, installed=installed, faults=faults))
        keeper.chmod(0o755)


def link_all(source: pathlib.Path, target: pathlib.Path, but: "tuple[str, ...]") -> None:
    target.mkdir()
    for entry in source.iterdir():
        if entry.name not in but:
            (target / entry.name).symlink_to(entry)


def place(path: pathlib.Path, text: str) -> None:
    """Whole at once; whoever takes it renames it."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text)
    draft.chmod(0o666)
    draft.rename(path)
