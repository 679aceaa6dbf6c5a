#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""dlrover-agent that loses its daemon, is killed, or gets signals. Runs in the build folder (make check) without Slurm and without
root."""
import os
import select
import signal
import sys
import time

from agent_case import AGENT, DEADLINE, PATIENCE, RUN, AgentCase, alive, main, state, wait_until


class Lost(AgentCase):
    def test_no_daemon_fails_within_two_seconds(self):
        begin = time.monotonic()
        agent = self.start("/bin/true")
        self.assertEqual(agent.wait(DEADLINE), 69)
        self.assertLess(time.monotonic() - begin, 2.0 * PATIENCE)
        text = self.text("err")
        self.assertIn("node n1", text)
        self.assertIn("--dlrover-optional", text)
        self.no_scratch_left()

    def test_refused_by_the_daemon(self):
        self.daemon(refuse="this step is unknown here")
        agent = self.start("/bin/true")
        self.assertEqual(agent.wait(DEADLINE), 69)
        self.assertIn("this step is unknown here", self.text("err"))

    def test_optional_runs_unprotected(self):
        agent = self.start("a", "b", env={"DLROVER_OPTIONAL": "1", "DLROVER_AGENT_ARGV0": "/bin/echo"})
        self.assertEqual(agent.wait(DEADLINE), 0)
        self.assertEqual(self.text("out"), "a b\n")
        self.assertEqual(len(self.text("err").splitlines()), 1)

    def test_optional_keeps_code_and_signals(self):
        agent = self.start("/bin/sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done",
                           env={"DLROVER_OPTIONAL": "1"})
        wait_until(lambda: self.text("out") == "up\n", "the program is up")
        agent.terminate()
        self.assertEqual(agent.wait(DEADLINE), 5)

    def test_module_could_not_register(self):
        begin = time.monotonic()
        agent = self.start("/bin/true", env={"DLROVER_REGISTER_ERROR": "the daemon is of another version"})
        self.assertEqual(agent.wait(DEADLINE), 69)
        self.assertLess(time.monotonic() - begin, 1.0 * PATIENCE)
        self.assertIn("the daemon is of another version", self.text("err"))
        agent = self.start("-c", "exit 4", env={"DLROVER_REGISTER_ERROR": "x", "DLROVER_OPTIONAL": "1",
                                                "DLROVER_AGENT_ARGV0": "/bin/sh"})
        self.assertEqual(agent.wait(DEADLINE), 4)

    def test_a_registration_that_comes_late(self):
        agent = self.start("/bin/sh", "-c", "echo ${DLROVER_REGISTER_LATE-gone}", env={"DLROVER_REGISTER_LATE": "1"})
        time.sleep(2.5)  # longer than an agent waits otherwise
        self.assertIsNone(agent.poll(), self.text("err"))
        daemon = self.daemon()
        daemon.expect("agent")
        daemon.order("world 1")
        daemon.expect("exited gen=1:1 local=0 status=0 stopped=0")
        daemon.order("ended 0")
        self.assertEqual(agent.wait(DEADLINE), 0)
        self.assertEqual(self.text("out"), "gone\n")

    def test_daemon_returns_within_the_lease(self):
        daemon = self.daemon(lease_ms=5000)
        agent = self.start("/bin/sleep", "600")
        daemon.expect("agent")
        daemon.order("world 1")
        pid = int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+)")[1])
        daemon.kill()
        daemon = self.daemon(lease_ms=5000)
        daemon.expect(r"agent .* resumed=1:1", limit=1)
        self.assertEqual(int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+)")[1]), pid)
        self.assertTrue(alive(pid))
        os.kill(pid, signal.SIGKILL)
        daemon.expect(r"exited gen=1:1 local=0 status=9 stopped=0")
        daemon.order("ended 137")
        self.assertEqual(agent.wait(DEADLINE), 137)

    def test_an_exit_without_a_daemon_is_told_later(self):
        daemon = self.daemon()
        self.start("/bin/sleep", "600")
        daemon.expect("agent")
        daemon.order("world 1")
        pid = int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+)")[1])
        daemon.kill()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), "the worker is dead")
        daemon = self.daemon()
        daemon.expect(r"agent .* resumed=1:1")
        daemon.expect(r"exited gen=1:1 local=0 status=9 stopped=0")
        daemon.order("world 2 restart=1")
        daemon.expect(r"started gen=1:2")

    def test_the_lease_ends(self):
        for way in ("killed", "silent"):
            with self.subTest(way):
                daemon = self.daemon(lease_ms=400, grace_ms=100)
                agent = self.start("/bin/sleep", "600")
                daemon.expect("agent")
                daemon.order("world 1")
                pid = int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+)")[1])
                begin = time.monotonic()
                if way == "killed":
                    daemon.kill()
                else:
                    daemon.order("silent")
                wait_until(lambda: not alive(pid), "the worker is stopped", limit=2)
                self.assertGreater(time.monotonic() - begin, 0.25)
                reason = "no word from dlroverd on n1" if way == "killed" else "n1 has not heard from its group's leader"
                wait_until(lambda said=reason: said in self.text("err"), "the reason is said")
                if way == "killed":
                    daemon = self.daemon(lease_ms=400)
                    daemon.expect(r"agent .* resumed=0:0")
                else:
                    daemon.order("talk")
                told = daemon.expect(r"(exited|stopped) gen=1:1.*")[0]
                if way == "killed":  # the daemon that comes back hears that this was not its doing
                    self.assertRegex(told, "stopped=0 .*text=stopped by the agent")
                daemon.order("world 1")  # never again under an old number
                daemon.order("world 2 restart=1")
                daemon.expect(r"started gen=1:2")
                daemon.order("ended 0")
                self.assertEqual(agent.wait(DEADLINE), 0)
                daemon.kill()

    def test_words_that_renew_no_lease(self):
        """Those that were said long ago, as after this process hung, and others than those of the lease."""
        for way in ("late 1000", "silent"):
            with self.subTest(way):
                daemon = self.daemon(lease_ms=400, grace_ms=100)
                agent = self.start("/bin/sleep", "600")
                daemon.expect("agent")
                daemon.order("world 1")
                pid = int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+)")[1])
                daemon.order(way)
                for _ in range(30):
                    if not alive(pid):
                        break
                    daemon.order("cancel")
                    time.sleep(0.05)
                wait_until(lambda: not alive(pid), "the worker is stopped", limit=1)
                daemon.order("late 0")
                daemon.order("talk")
                daemon.order("world 2 restart=1")
                daemon.expect(r"started gen=1:2")
                daemon.order("ended 0")
                self.assertEqual(agent.wait(DEADLINE), 0)
                daemon.kill()

    def test_a_world_that_came_while_the_lease_was_lost_is_started_when_it_is_back(self):
        """The group waits for its ranks: nothing else would tell it that they are not coming."""
        daemon = self.daemon(lease_ms=400, grace_ms=3000)
        agent = self.start("/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
        daemon.expect("agent")
        daemon.order("world 1")
        pid = int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+)")[1])
        wait_until(lambda: self.text("out") == "up\n", "the program is up")
        daemon.order("world 2 restart=1")  # waits for the first one's end, which takes longer than the lease
        daemon.order("silent")
        wait_until(lambda: "has not heard from its group's leader" in self.text("err"), "the lease is lost")
        wait_until(lambda: not alive(pid), "the worker is stopped")
        time.sleep(0.3)
        self.assertEqual(daemon.lines.count(r"started gen=1:2"), 0, "not without a lease")
        self.expect_start_under_the_lease(daemon, agent, "1:2")

    def expect_start_under_the_lease(self, daemon, agent, generation):
        """Once it is renewed; and the end."""
        daemon.order("late 0")
        daemon.order("talk")
        daemon.expect(f"started gen={generation}")
        daemon.order("ended 0")
        self.assertEqual(agent.wait(DEADLINE), 0)

    def test_a_world_that_was_told_long_ago_is_not_started_before_the_lease_is_renewed(self):
        daemon = self.daemon(lease_ms=400)
        agent = self.start("/bin/sleep", "600")
        daemon.expect("agent")
        daemon.order("late 5000")
        daemon.order("silent")
        time.sleep(0.6)
        daemon.order("world 1")
        time.sleep(0.3)
        self.assertEqual(daemon.lines.count(r"started gen=1:1"), 0)
        self.expect_start_under_the_lease(daemon, agent, "1:1")

    def log_that_hangs(self):
        """Where the first start of the rank writes its log, a pipe: whoever opens it waits for a reader, and whoever writes for one that reads."""
        folder = os.path.join(self.dir, "logs/lab_0_test_n1/attempt_0/0")
        os.makedirs(folder)
        log = os.path.join(folder, "stdout.log")
        os.mkfifo(log)
        return log

    def start_with_log(self, *program):
        return self.start("--no-python", "--log-dir", os.path.join(self.dir, "logs"), "--tee", "1", *program, program=RUN)

    def test_the_lease_ends_while_a_log_hangs(self):
        """The file system of the log hangs with the network, and the worker's output waits for it: its end does not."""
        log = self.log_that_hangs()
        reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        daemon = self.daemon(lease_ms=1000, grace_ms=100)
        agent = self.start_with_log("/bin/sh", "-c", "while :; do echo 0123456789abcdef0123456789abcdef; done")
        daemon.expect("agent")
        daemon.order("world 1")
        pid = int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+)")[1])
        written = []

        def stands_still():
            written.append(os.stat(os.path.join(self.dir, "out")).st_size)
            return written[-1] > 60000 and len(written) > 20 and written[-1] == written[-20]
        wait_until(stands_still, "the worker waits for its log")
        self.assertTrue(alive(pid))
        began = time.monotonic()
        daemon.order("silent")
        wait_until(lambda: not alive(pid), "the worker is stopped", limit=3)
        print(f"stopped {time.monotonic() - began:.2f} s after the last word, with a lease of 1 s", file=sys.stderr)
        wait_until(lambda: "n1 has not heard from its group's leader" in self.text("err"), "the reason is said")
        daemon.order("late 0")
        daemon.order("talk")
        daemon.order("ended 3")
        self.assertEqual(agent.wait(DEADLINE), 3)
        self.assertIn("its file system hangs", self.text("err"))
        os.close(reader)

    def test_a_log_that_can_not_be_opened_yet_holds_up_the_start_alone(self):
        log = self.log_that_hangs()
        daemon = self.daemon(lease_ms=400)
        agent = self.start_with_log("/bin/sh", "-c", "echo up; exec sleep 600")
        daemon.expect("agent")
        daemon.order("world 1")
        time.sleep(0.3)
        daemon.order("stop 1")
        daemon.expect("stopped gen=1:1")
        daemon.order("world 2")
        daemon.order("silent")
        time.sleep(0.7)
        reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)  # the file system is back, the lease is not
        time.sleep(0.3)
        self.assertEqual(daemon.lines.count(r"started gen"), 0)
        daemon.order("late 0")
        daemon.order("talk")
        daemon.expect("started gen=1:2")
        wait_until(lambda: select.select([reader], [], [], 0)[0], "the log is written")
        self.assertEqual(os.read(reader, 100), b"up\n")
        os.close(reader)
        daemon.order("ended 0")
        self.assertEqual(agent.wait(DEADLINE), 0)

    def test_the_end_waits_for_a_log_that_is_slow(self):
        """It takes longer than one that hangs is waited for, and moves all the while."""
        log = self.log_that_hangs()
        reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        daemon = self.daemon()
        agent = self.start_with_log("/usr/bin/python3", "-c", "print('x' * 399999)")
        daemon.expect("agent")
        daemon.order("world 1")
        daemon.expect("exited .* status=0")
        daemon.order("ended 0")
        began, seen = time.monotonic(), 0
        while agent.poll() is None and time.monotonic() - began < DEADLINE:
            if select.select([reader], [], [], 0)[0]:
                seen += len(os.read(reader, 40000))
            time.sleep(0.9)
        self.assertEqual(agent.wait(DEADLINE), 0)
        while part := os.read(reader, 1 << 16):
            seen += len(part)
        os.close(reader)
        print(f"the end took {time.monotonic() - began:.1f} s", file=sys.stderr)
        self.assertEqual(seen, 400000)
        self.assertNotIn("hangs", self.text("err"))

    def test_the_end_does_not_wait_for_a_log_that_can_not_be_opened(self):
        self.log_that_hangs()
        daemon = self.daemon()
        agent = self.start_with_log("/bin/sleep", "600")
        daemon.expect("agent")
        daemon.order("world 1")
        time.sleep(0.3)
        daemon.order("ended 4")
        self.assertEqual(agent.wait(DEADLINE), 4)
        self.no_scratch_left()

    def test_the_end_outlasts_the_daemon_and_the_lease(self):
        daemon = self.daemon(lease_ms=300)
        agent = self.start("/bin/sleep", "600")
        daemon.expect("agent")
        daemon.order("world 1")
        pid = int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+)")[1])
        daemon.order("ending 20000")
        wait_until(lambda: not alive(pid), "the worker is stopped")
        daemon.kill()
        daemon = self.daemon(lease_ms=300)
        daemon.expect("agent")
        daemon.order("ending 20000")
        time.sleep(1.5)  # five leases that nobody renews
        self.assertIsNone(agent.poll())
        self.assertEqual(self.text("err"), "")
        daemon.order("world 2")
        daemon.order("ended 5")
        self.assertEqual(agent.wait(DEADLINE), 5)
        self.assertEqual(daemon.lines.count("started gen=1:2"), 0)

    def test_an_end_without_a_verdict(self):
        daemon = self.daemon()
        agent = self.start("/bin/sleep", "600")
        daemon.expect("agent")
        daemon.order("world 1")
        daemon.expect("started")
        daemon.order("ending 100")
        self.assertEqual(agent.wait(DEADLINE), 75)
        self.assertIn("has not said how the group ended", self.text("err"))

    def test_a_world_during_the_start_of_a_daemon_is_not_lost(self):
        daemon = self.daemon()
        agent = self.start("/bin/sh", "-c", "exit 0")
        daemon.expect("agent")
        daemon.order("drop")
        daemon.expect("closed")
        daemon.expect("agent")
        daemon.order("world 1")
        daemon.expect("exited gen=1:1")
        daemon.order("ended 0")
        self.assertEqual(agent.wait(DEADLINE), 0)


class Killed(AgentCase):
    def running_tree(self, **more):
        """An agent with a worker that has a daemonised grandchild: (guard, agent, [worker's processes])."""
        daemon = self.daemon(grace_ms=200)
        guard = self.start("/bin/sh", "-c", "setsid sh -c 'sleep 600 & sleep 600' & sleep 600", **more)
        daemon.expect("agent")
        daemon.order("world 1")
        daemon.expect("started")
        tree = wait_until(lambda: self.whole_tree(guard.pid, 3), "the tree is up")
        return daemon, guard, tree[0], tree[1:]

    def test_agent_killed(self):
        _, guard, agent, workers = self.running_tree()
        os.kill(agent, signal.SIGKILL)
        self.assertEqual(guard.wait(DEADLINE), 137)
        wait_until(lambda: not any(alive(p) for p in workers), "all workers are gone", limit=2)
        self.no_scratch_left()

    def test_guard_killed(self):
        _, guard, agent, workers = self.running_tree()
        guard.kill()
        guard.wait()
        wait_until(lambda: not any(alive(p) for p in [agent] + workers), "all are gone", limit=3)
        self.no_scratch_left()

    def test_step_daemon_killed(self):
        """slurmstepd is played by a shell between the test and the agent."""
        daemon = self.daemon(grace_ms=200)
        stepd = self.start("-c", f"'{AGENT}' sleep 600; true", program="/bin/sh")
        daemon.expect("agent")
        daemon.order("world 1")
        worker = int(daemon.expect(r"started .* pid=(\d+)")[1])
        below = self.tree(stepd.pid)
        stepd.kill()
        stepd.wait()
        wait_until(lambda: not any(alive(p) for p in below + [worker]), "all are gone", limit=3)

    def test_terminate(self):
        daemon, guard, agent, workers = self.running_tree()
        guard.terminate()
        daemon.expect("signal 15")
        daemon.expect(r"exited .* status=15 stopped=1")
        daemon.order("ended 143 told to end")
        self.assertEqual(guard.wait(DEADLINE), 143)
        wait_until(lambda: not any(alive(p) for p in workers), "all workers are gone", limit=2)

    def test_terminate_without_a_verdict(self):
        daemon, guard, agent, workers = self.running_tree()
        daemon.kill()
        guard.terminate()
        self.assertEqual(guard.wait(DEADLINE), 143)
        wait_until(lambda: not any(alive(p) for p in workers), "all workers are gone", limit=2)

    def test_a_worker_may_use_its_notice(self):
        daemon = self.daemon(grace_ms=100)
        guard = self.start("/bin/sh", "-c", "trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; "
                           "while :; do sleep 0.02; done")
        daemon.expect("agent")
        daemon.order("world 1")
        wait_until(lambda: self.text("out") == "up\n", "the worker is up")
        guard.terminate()
        daemon.expect(r"exited .* status=0")
        daemon.order("ended 0")
        self.assertEqual(guard.wait(DEADLINE), 0)
        self.assertEqual(self.text("out"), "up\nsaved\n")

    def test_notice_lasts_though_the_group_has_ended(self):
        daemon = self.daemon(grace_ms=50)
        guard = self.start("/bin/sh", "-c", "trap 'echo got; sleep 0.5; echo saved; exit 0' TERM; echo up; "
                           "while :; do sleep 0.02; done")
        daemon.expect("agent")
        daemon.order("world 1")
        wait_until(lambda: self.text("out") == "up\n", "the worker is up")
        guard.terminate()
        daemon.expect("signal 15")
        daemon.order("ended 143")
        self.assertEqual(guard.wait(DEADLINE), 143)
        self.assertEqual(self.text("out"), "up\ngot\nsaved\n")

    def test_notice_lasts_longer_than_the_lease(self):
        """There is none any more once the end is near: nobody renews it."""
        for order in ("ending 20000", "ended 143"):
            with self.subTest(order):
                daemon = self.daemon(lease_ms=300, grace_ms=50)
                guard = self.start("/bin/sh", "-c", "trap 'echo got; sleep 2; echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done")
                daemon.expect("agent")
                daemon.order("world 1")
                wait_until(lambda: self.text("out").endswith("up\n"), "the worker is up")
                guard.terminate()
                daemon.expect("signal 15")
                daemon.order("silent")
                daemon.order(order)
                wait_until(lambda: self.text("out").endswith("got\nsaved\n"), "the worker has used its notice")
                daemon.order("ended 143")
                self.assertEqual(guard.wait(DEADLINE), 143)
                daemon.kill()

    def test_words_that_came_while_it_was_stopped_renew_the_lease(self):
        """As by scontrol suspend, for longer than the lease: the daemon has gone on, and its newest word is of a moment ago."""
        daemon = self.daemon(lease_ms=1500, grace_ms=100, renew_ms=50)
        guard = self.start("/bin/sleep", "600")
        daemon.expect("agent")
        daemon.order("world 1")
        worker = int(daemon.expect(r"started gen=1:1 local=0 pid=(\d+)")[1])
        agent = wait_until(lambda: self.whole_tree(guard.pid, 1), "the tree is up")[0]
        for _ in range(2):
            os.kill(agent, signal.SIGSTOP)
            time.sleep(3.5)
            os.kill(agent, signal.SIGCONT)
            time.sleep(0.3)
        self.assertEqual(self.text("err"), "")
        self.assertTrue(alive(worker))
        daemon.order("ended 0")
        self.assertEqual(guard.wait(DEADLINE), 0)

    def test_a_second_signal_ends_the_notice(self):
        daemon = self.daemon(grace_ms=50)
        guard = self.start("/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done")
        daemon.expect("agent")
        daemon.order("world 1")
        wait_until(lambda: self.text("out") == "up\n", "the worker is up")
        guard.terminate()
        daemon.expect("signal 15")
        daemon.order("ended 143")
        time.sleep(0.4)  # the time that tells a second signal from an echo of the first
        guard.terminate()
        self.assertEqual(guard.wait(3), 143)

    def test_other_signals_reach_the_worker(self):
        daemon = self.daemon()
        guard = self.start("/bin/sh", "-c", "for s in USR1 USR2 HUP WINCH; do trap \"echo $s\" $s; done; echo up; "
                           "while :; do sleep 0.02; done")
        daemon.expect("agent")
        daemon.order("world 1")
        wait_until(lambda: "up" in self.text("out"), "the worker is up")
        for name in ("USR1", "USR2", "HUP", "WINCH"):
            guard.send_signal(getattr(signal, "SIG" + name))
            wait_until(lambda: name in self.text("out").split(), f"SIG{name} arrived")

    def test_stop_and_continue(self):
        daemon, guard, agent, workers = self.running_tree()

        def states():
            return [state(p) for p in workers]
        guard.send_signal(signal.SIGTSTP)
        wait_until(lambda: set(states()) == {"T"}, "the tree is stopped")
        self.assertNotEqual(state(agent), "T")
        guard.send_signal(signal.SIGCONT)
        wait_until(lambda: "T" not in states(), "the tree goes on")


if __name__ == "__main__":
    main()
