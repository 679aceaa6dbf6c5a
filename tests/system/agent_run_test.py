#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""dlrover-run: torchrun's command line, and alone with a daemon of its own. Runs in the build folder (make check) without Slurm and
without root."""
import os
import signal

from agent_case import DEADLINE, RUN, AgentCase, alive, main, name_of, wait_until


class Run(AgentCase):
    def test_several_workers(self):
        daemon = self.daemon()
        run = self.start("--nproc-per-node=3", "--no-python", "/bin/sh", "-c",
                         "for i in 1 2 3 4 5; do printf \"$RANK \"; sleep 0.01; echo $LOCAL_RANK/$LOCAL_WORLD_SIZE "
                         "$OMP_NUM_THREADS; done", program=RUN, env={"OMP_NUM_THREADS": None})
        daemon.expect(r"agent .* workers=3")
        daemon.order("world 1 size=3 local=3")
        for _ in range(3):
            daemon.expect(r"exited .* status=0")
        daemon.order("ended 0")
        self.assertEqual(run.wait(DEADLINE), 0)
        self.assertEqual(sorted(self.text("out").splitlines()), sorted(f"{i} {i}/3 1" for i in range(3) for _ in range(5)))

    def test_one_failure_stops_all(self):
        daemon = self.daemon(grace_ms=100)
        run = self.start("--nproc_per_node", "3", "--no_python", "/bin/sh", "-c",
                         "[ $RANK = 1 ] && exit 5; trap '' TERM; while :; do sleep 1; done", program=RUN)
        daemon.expect("agent")
        daemon.order("world 1 size=3 local=3")
        daemon.expect(r"exited .* local=1 status=1280 stopped=0")
        daemon.order("stop 1")
        daemon.expect(r"stopped gen=1:1")
        daemon.order("ended 5")
        self.assertEqual(run.wait(DEADLINE), 5)

    def test_tee_and_redirects(self):
        daemon = self.daemon()
        run = self.start("--nproc-per-node=2", "--no-python", "--log-dir", os.path.join(self.dir, "logs"), "-r", "0:1",
                         "-t", "1:3", "/bin/sh", "-c", "echo out $RANK; echo err $RANK >&2", program=RUN)
        daemon.expect("agent")
        daemon.order("world 1 size=2 local=2")
        daemon.expect("exited")
        daemon.expect("exited")
        daemon.order("ended 0")
        self.assertEqual(run.wait(DEADLINE), 0)
        self.assertEqual(self.text("out"), "[default1]:out 1\n")
        attempt = "logs/lab_0_test_n1/attempt_0"
        self.assertEqual(self.text(f"{attempt}/0/stdout.log"), "out 0\n")
        self.assertEqual(self.text(f"{attempt}/1/stdout.log"), "out 1\n")
        self.assertEqual(self.text(f"{attempt}/1/stderr.log"), "err 1\n")

    def refused(self, *argv, **env):
        run = self.start(*argv, program=RUN, env=env)
        self.assertEqual(run.wait(DEADLINE), 2)
        return self.text("err")

    def test_refusals(self):
        none = {"DLROVER_JOB_ID": None, "DLROVER_STEP_ID": None}
        self.assertIn("--standalone", self.refused("x.py", **none))
        self.assertIn("--dlrover-elastic", self.refused("x.py", SLURM_JOB_ID="3", **none))
        self.assertIn("already a worker", self.refused("x.py", DLROVER_MANAGED="1", RANK="0"))
        self.assertIn("--nonsense", self.refused("--nonsense", "x.py"))
        self.assertIn("no program", self.refused())


class Standalone(AgentCase):
    """With the real daemon."""

    def run_alone(self, *argv, **more):
        none = dict.fromkeys(("DLROVER_JOB_ID", "DLROVER_STEP_ID", "DLROVER_SOCKET", "DLROVER_LOCAL_TASK"))
        return self.start("--standalone", *argv, program=RUN, env=none, **more)

    def nothing_left(self, pids):
        wait_until(lambda: not any(alive(p) for p in pids), "all processes are gone", limit=5)
        self.assertEqual([n for n in os.listdir(self.dir) if n.startswith("dlrover-")], [])

    def up(self):
        """A run whose worker prints "up": (its process, all pids below it)."""
        run = self.run_alone("--no-python", "/bin/sh", "-c", "echo up; setsid sleep 600 & sleep 600")
        wait_until(lambda: "up" in self.text("out"), "the worker is up")
        return run, wait_until(lambda: self.whole_tree(run.pid, 2), "the tree is up")

    def daemon_of(self, pids):
        return next(p for p in pids if name_of(p) == "dlroverd")

    def test_a_restart(self):
        run = self.run_alone("--nproc-per-node=2", "--no-python", "/bin/sh", "-c",
                             "echo $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT; "
                             "[ $RANK = 0 ] && touch here; while ! [ -e here ]; do sleep 0.01; done; "
                             "[ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 3; sleep 0.3")
        self.assertEqual(run.wait(DEADLINE), 0)
        self.assertEqual(sorted(self.text("out").splitlines()), ["0/2 0", "0/2 1", "1/2 0", "1/2 1"])
        self.assertIn("1 restart", self.text("err"))
        self.nothing_left([])

    def test_a_hopeless_program(self):
        worker = self.script("print('try', flush=True); import nonexistent_module_xyz")
        run = self.run_alone(worker)
        self.assertEqual(run.wait(DEADLINE), 1)
        self.assertLessEqual(self.text("out").count("try"), 3)
        self.assertIn("ModuleNotFoundError", self.text("err"))
        self.nothing_left([])

    def test_told_to_end(self):
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(sig):
                run, pids = self.up()
                run.send_signal(sig)
                self.assertEqual(run.wait(DEADLINE), 128 + sig)
                self.nothing_left(pids)

    def test_killed_itself(self):
        run, pids = self.up()
        run.kill()
        run.wait()
        self.nothing_left(pids)

    def test_the_agent_is_killed(self):
        run, pids = self.up()
        agent = next(p for p in pids if name_of(p) == "dlrover-run")
        os.kill(agent, signal.SIGKILL)
        self.assertEqual(run.wait(DEADLINE), 137)
        self.nothing_left(pids)

    def test_the_daemon_is_killed(self):
        run, pids = self.up()
        daemon = self.daemon_of(pids)
        os.kill(daemon, signal.SIGKILL)
        second = wait_until(lambda: next((p for p in self.tree(run.pid) if name_of(p) == "dlroverd" and p != daemon), None),
                            "the keeper starts another daemon")
        os.kill(next(p for p in pids if name_of(p) == "sh"), signal.SIGKILL)
        wait_until(lambda: self.text("out").count("up") == 2, "the worker is started again")
        self.assertTrue(alive(second))
        run.terminate()
        self.assertEqual(run.wait(DEADLINE), 143)
        self.nothing_left(pids + [second])


if __name__ == "__main__":
    main()
