#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""dlrover-agent against a scripted daemon: starts, restarts, environment. Runs in the build folder (make check) without Slurm and
without root."""
import os
import signal
import sys
import time

from agent_case import DEADLINE, PATIENCE, AgentCase, Lines, alive, main, wait_until


class Life(AgentCase):
    def test_a_worker_runs_and_the_group_ends(self):
        daemon = self.daemon()
        agent = self.start("/bin/sh", "-c", "echo hello; echo bad >&2; cat; exit 0")
        daemon.expect(r"agent job=7 step=0 task=0 workers=1 resumed=0:0")
        daemon.order("world 1")
        daemon.expect(r"started gen=1:1 local=0")
        daemon.expect(r"exited gen=1:1 local=0 status=0 stopped=0")
        daemon.order("ended 3 it is over")
        daemon.expect(r"bye 3")
        self.assertEqual(agent.wait(DEADLINE), 3)
        self.assertEqual(self.text("out"), "hello\n")
        self.assertEqual(self.text("err"), "bad\ndlrover-agent: it is over\nSUMMARY\n")
        self.no_scratch_left()

    def test_connected_within_milliseconds(self):
        daemon = self.daemon()
        times = []
        for _ in range(10):
            begin = time.monotonic()
            agent = self.start("/bin/true")
            daemon.expect(r"agent job=7")
            times.append(time.monotonic() - begin)
            daemon.order("ended 0")
            agent.wait(DEADLINE)
        print(f"start to joined: best {min(times) * 1e3:.1f} ms, median {sorted(times)[5] * 1e3:.1f} ms", file=sys.stderr)
        self.assertLess(min(times), 0.05 * PATIENCE)  # with fork, exec and the test's own time; a machine shared with others

    def test_exit_codes_and_signals_are_told(self):
        daemon = self.daemon()
        agent = self.start("/bin/sh", "-c", "case $TORCHELASTIC_RESTART_COUNT in 0) exit 1;; 1) exit 77;; "
                           "2) kill -9 $$;; 3) kill -11 $$;; 4) kill -15 $$;; *) exit 0;; esac")
        daemon.expect("agent")
        for count, status in enumerate([1 << 8, 77 << 8, 9, 11, 15, 0]):
            daemon.order(f"world {count + 1} restart={count}")
            match = daemon.expect(rf"exited gen=1:{count + 1} local=0 status=(\d+) stopped=0")
            self.assertEqual(int(match[1]) & ~0x80, status)  # without the core bit
        daemon.order("ended 0")
        self.assertEqual(agent.wait(DEADLINE), 0)

    def test_a_program_that_can_not_be_run(self):
        daemon = self.daemon()
        self.start("/nonexistent/program")
        daemon.expect("agent")
        daemon.order("world 1")
        match = daemon.expect(r"exited gen=1:1 local=0 status=(\d+) .*text=(.*)")
        self.assertEqual(int(match[1]), 127 << 8)
        self.assertIn("can not run /nonexistent/program", match[2])

    def test_a_spare_runs_nothing(self):
        daemon = self.daemon()
        agent = self.start("/bin/sh", "-c", "echo ran")
        daemon.expect("agent")
        daemon.order("world 1 inactive")
        daemon.order("world 2")
        daemon.expect("exited gen=1:2")
        self.assertEqual(daemon.lines.count("started"), 1)
        daemon.order("ended 0")
        agent.wait(DEADLINE)
        self.assertEqual(self.text("out"), "ran\n")

    def test_the_first_task_keeps_the_helpers_of_the_step(self):
        daemon = self.daemon()
        for name in ("dlrover-writer", "dlrover-mover"):
            os.chmod(self.script(f"#!/bin/sh\necho $$ >> {self.dir}/{name}.pids\nexec sleep 1000\n", name), 0o755)

        def pids(name):
            path = os.path.join(self.dir, f"{name}.pids")
            return [int(p) for p in self.text(path).split()] if os.path.exists(path) else []

        def run(want, **env):
            """The helpers that an agent with this environment starts; each comes back once it has died."""
            agent = self.start("/bin/true", env={"DLROVER_SBINDIR": self.dir, **env})
            daemon.expect("agent job=7")
            for name in want:
                os.kill(wait_until(lambda: pids(name), name)[0], 9)
            for name in want:
                wait_until(lambda: len(pids(name)) == 2, f"{name} again")
            daemon.order("ended 0")
            agent.wait(DEADLINE)
            found = [name for name in ("dlrover-writer", "dlrover-mover") if pids(name)]
            self.assertFalse([p for name in found for p in pids(name) if alive(p)])
            for name in found:
                os.unlink(os.path.join(self.dir, f"{name}.pids"))
            return found

        both = ["dlrover-writer", "dlrover-mover"]
        self.assertEqual(run(both, DLROVER_CKPT_DIR="/data", DLROVER_REDUNDANCY="partner:1"), both)
        self.assertEqual(run(both[1:], DLROVER_REDUNDANCY="partner:1"), both[1:])
        self.assertEqual(run(both[:1], DLROVER_CKPT_DIR="/data", DLROVER_REDUNDANCY="single"), both[:1])
        self.assertEqual(run([]), [])
        self.assertEqual(run([], DLROVER_LOCAL_TASK="1", DLROVER_CKPT_DIR="/data", DLROVER_REDUNDANCY="partner:1"), [])

    def test_an_old_world_is_not_started(self):
        daemon = self.daemon()
        self.start("/bin/sh", "-c", "exit 1")
        daemon.expect("agent")
        daemon.order("world 5")
        daemon.expect("exited gen=1:5")
        daemon.order("world 5")
        daemon.order("world 4")
        daemon.order("world 6")
        daemon.expect("exited gen=1:6")
        self.assertEqual(daemon.lines.count("started"), 2)


class Restart(AgentCase):
    def test_nothing_of_the_old_tree_is_left(self):
        """A child that forked twice, left the session and ignores SIGTERM is gone before the next worker starts."""
        pids = os.path.join(self.dir, "pids")
        worker = self.script(f"""
            import os, signal, sys, time
            old = [int(p) for p in open({pids!r})] if os.path.exists({pids!r}) else []
            left = [p for p in old if os.path.exists(f"/proc/{{p}}")]
            print("left", left, flush=True)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open({pids!r}, "w") as f:
                for kind in range(3):
                    r, w = os.pipe()
                    if os.fork() == 0:
                        os.setsid()
                        if os.fork() == 0:
                            os.write(w, str(os.getpid()).encode())
                            time.sleep(600)
                        os._exit(0)
                    os.wait()
                    print(os.read(r, 32).decode(), file=f, flush=True)
                print(os.getpid(), file=f, flush=True)
            print("ready", flush=True)
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
                os._exit(9)
            time.sleep(600)
            """)
        daemon = self.daemon(grace_ms=100)
        r, w = os.pipe()
        agent = self.start("/usr/bin/python3", worker, stdout=w)
        os.close(w)
        out = Lines(os.fdopen(r))
        daemon.expect("agent")
        for generation in (1, 2, 3):
            daemon.order(f"world {generation} restart={generation - 1}")
            daemon.expect(f"started gen=1:{generation}")
            self.assertEqual(out.expect("left (.*)")[1], "[]")
            out.expect("ready")
            if generation == 2:  # ended by itself; what it left behind goes too
                daemon.expect(r"exited gen=1:2 local=0 status=2304 stopped=0")
            daemon.order(f"stop {generation}")
            daemon.expect(f"stopped gen=1:{generation}")
            for pid in self.text("pids").split():
                self.assertFalse(alive(int(pid)), f"process {pid} of generation {generation} lives")
        daemon.order("ended 0")
        agent.wait(DEADLINE)

    def sleeping(self, world=""):
        """An agent whose worker sleeps in world 1: the daemon, and the worker's pid."""
        daemon = self.daemon(grace_ms=2000)
        self.start("/bin/sleep", "600")
        daemon.expect("agent")
        daemon.order(f"world 1 {world}")
        return daemon, int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+) stayed=0$")[1])

    def test_a_newer_world_replaces_running_workers(self):
        daemon, first = self.sleeping()
        daemon.order("world 2")
        daemon.expect(r"exited gen=1:1 local=0 status=15 stopped=1")
        daemon.expect(r"started gen=1:2")
        self.assertFalse(alive(first))

    def test_a_process_that_stays_is_that_of_the_next_world(self):
        daemon, pid = self.sleeping("size=2 first=1")
        daemon.order("stop 1 stays")
        daemon.order("world 2 restart=1")
        told = daemon.expect(rf"started gen=1:2 local=0 pid={pid} stayed=1 (.*)")[1].split()
        self.assertLessEqual({"RANK=0", "WORLD_SIZE=1", "TORCHELASTIC_RESTART_COUNT=1"}, set(told))
        self.assertFalse([word for word in told if word.startswith("LOCAL_RANK")], told)  # as before
        # What has changed is compared with that, not with what the agent began with.
        daemon.order("stop 2 stays")
        daemon.order("world 3 restart=2 size=2 first=1")
        told = daemon.expect(rf"started gen=1:3 local=0 pid={pid} stayed=1 (.*)")[1].split()
        self.assertLessEqual({"RANK=1", "WORLD_SIZE=2", "TORCHELASTIC_RESTART_COUNT=2"}, set(told))
        self.assertTrue(alive(pid))

    def test_a_process_that_stays_is_ended_where_the_next_world_has_no_place_for_it(self):
        daemon, pid = self.sleeping()
        daemon.order("stop 1 stays")
        daemon.order("world 2 inactive")
        daemon.expect(r"exited gen=1:1 local=0 status=15 stopped=1")
        self.assertFalse(alive(pid))
        daemon.order("world 3")  # its node is needed again
        daemon.expect(r"started gen=1:3 .* stayed=0$")

    def test_a_process_that_was_to_stay_and_dies_is_no_process_any_more(self):
        daemon, pid = self.sleeping()
        daemon.order("stop 1 stays")
        os.kill(pid, signal.SIGKILL)
        daemon.expect("stopped gen=1:1")
        daemon.order("world 2")
        daemon.expect(r"started gen=1:2 .* stayed=0$")

    def test_a_worker_leads_a_group_of_its_own_in_the_session_of_its_agent(self):
        """Linux shares the processors out by sessions: ranks in sessions of their own would yield to nobody."""
        daemon = self.daemon()
        agent = self.start("/usr/bin/python3", "-c", "import os; print(os.getpgrp() == os.getpid(), os.getsid(0))", start_new_session=True)
        daemon.expect("agent")
        daemon.order("world 1")
        daemon.expect(r"exited gen=1:1 local=0 status=0")
        wait_until(lambda: self.text("out").endswith("\n"), "the program's output")
        self.assertEqual(self.text("out").split(), ["True", str(agent.pid)])

    def test_stop_without_workers_is_answered(self):
        daemon = self.daemon()
        self.start("/bin/true")
        daemon.expect("agent")
        daemon.order("stop 3")
        daemon.expect("stopped gen=1:3")


class Environment(AgentCase):
    def test_contract(self):
        daemon = self.daemon()
        self.start("env-of-the-user", env={
            "DLROVER_AGENT_ARGV0": "/usr/bin/env", "SLURM_JOB_ID": "7", "SLURM_PROCID": "9", "SLURM_NTASKS": "10",
            "SLURM_STEP_NODELIST": "x[1-9]", "DLROVER_OPTIONAL": "1"})
        daemon.expect("agent")
        daemon.order("world 1 size=4 local=2 first=2")
        match = daemon.expect(r"exited .* status=(\d+) .*text=(.*)")
        self.assertEqual(int(match[1]), 127 << 8)  # env's own: it looked for the program "env-of-the-user"
        self.assertIn("env-of-the-user", match[2])

    def test_variables(self):
        daemon = self.daemon()
        agent = self.start("/usr/bin/env", env={
            "SLURM_JOB_ID": "7", "SLURM_PROCID": "9", "SLURM_NTASKS": "10", "DLROVER_OPTIONAL": "1"})
        daemon.expect("agent")
        daemon.order("world 1 size=4 local=2 first=2")
        daemon.expect("exited")
        daemon.order("ended 0")
        agent.wait(DEADLINE)
        env = dict(line.split("=", 1) for line in self.text("out").splitlines())
        for name, value in {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                            "SLURM_PROCID": "2", "DLROVER_SLURM_PROCID": "9", "SLURM_NTASKS": "4",
                            "DLROVER_GENERATION": "1:1", "DLROVER_MANAGED": "1"}.items():
            self.assertEqual(env.get(name), value, name)
        self.assertNotIn("DLROVER_OPTIONAL", env)
        self.assertNotIn("DLROVER_LOCAL_TASK", env)


if __name__ == "__main__":
    main()
