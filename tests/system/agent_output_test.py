#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What dlrover-agent does with its workers' output. Runs in the build folder (make check) without Slurm and without root."""
import os
import re
import sys

from agent_case import DEADLINE, AgentCase, Lines, main, wait_until


class Output(AgentCase):
    def pipe_agent(self, daemon, *argv):
        r, w = os.pipe()
        agent = self.start(*argv, stdout=w)
        os.close(w)
        daemon.expect("agent")
        return agent, r

    RATE_WORKER = """
        import sys, time
        line, worst, begin = b"x" * 1023 + b"\\n", 0.0, time.monotonic()
        for i in range({lines}):
            now = time.monotonic()
            sys.stdout.buffer.write(b"%06d" % i + line[6:]); sys.stdout.buffer.flush()
            worst = max(worst, time.monotonic() - now)
            ahead = (i + 1) / 1024 - (time.monotonic() - begin)
            if ahead > 0 and {paced}: time.sleep(ahead)
        print("worst %.6f total %.3f" % (worst, time.monotonic() - begin), file=sys.stderr, flush=True)
        """

    def run_writer(self, daemon, lines, paced):
        worker = self.script(self.RATE_WORKER.format(lines=lines, paced=paced))
        agent, r = self.pipe_agent(daemon, "/usr/bin/python3", worker)
        daemon.order("world 1")
        daemon.expect(r"exited .* status=0", limit=60)
        worst, total = wait_until(lambda: re.search(r"worst ([\d.]+) total ([\d.]+)\n", self.text("err")), "its times").groups()
        return agent, r, float(worst), float(total)

    def test_a_stopped_reader_slows_nobody(self):
        """8 MiB at 1 MiB/s into a pipe that nobody reads; then the reader comes back."""
        daemon = self.daemon()
        agent, r, worst, total = self.run_writer(daemon, 8192, True)
        print(f"1 MiB/s, reader stopped: longest write {worst * 1e3:.2f} ms, {total:.2f} s for 8 MiB", file=sys.stderr)
        # One that waited for the reader would never end. An agent without a processor fills the pipe for a while.
        self.assertLess(total, 20)
        self.assertLess(worst, 5)
        spill = os.path.join(self.dir, "dlrover-7.0-rank0.out")
        self.assertTrue(os.path.exists(spill))
        with os.fdopen(r, "rb") as reader:
            daemon.order("ended 0")
            seen = reader.read()
        self.assertEqual(agent.wait(DEADLINE), 0)
        self.assertIn(b"output are in " + spill.encode(), seen)
        lines = seen.decode().splitlines()
        shown = [int(line[:6]) for line in lines if re.match(r"\d{6}x", line) and len(line) == 1023]
        with open(spill, "rb") as f:
            spilled = f.read()
        self.assertEqual(shown, list(range(len(shown))))
        total_bytes = sum(len(line) + 1 for line in lines if "dlrover-agent:" not in line) + len(spilled)
        self.assertLessEqual(abs(total_bytes - 8192 * 1024), 2)  # at most a line end of ours

    def test_a_fast_writer_without_a_reader(self):
        daemon = self.daemon()
        agent, r, worst, total = self.run_writer(daemon, 65536, False)
        print(f"64 MiB as fast as it goes, reader stopped: {total:.2f} s", file=sys.stderr)
        self.assertLess(total, 10)
        os.close(r)
        daemon.order("ended 0")
        self.assertEqual(agent.wait(DEADLINE), 0)

    def test_the_newest_output_follows_when_the_reader_is_back(self):
        daemon = self.daemon()
        go = os.path.join(self.dir, "go")
        worker = self.script(f"""
            import os, sys, time
            sys.stdout.write(("y" * 99 + "\\n") * 80000); sys.stdout.flush()
            while not os.path.exists({go!r}): time.sleep(0.01)
            print("newest", flush=True)
            time.sleep(600)
            """)
        agent, r = self.pipe_agent(daemon, "/usr/bin/python3", worker)
        daemon.order("world 1")
        spill = os.path.join(self.dir, "dlrover-7.0-rank0.out")
        wait_until(lambda: os.path.exists(spill) and os.path.getsize(spill) > 1 << 20, "output is spilled")
        out = Lines(os.fdopen(r))
        out.expect("nobody read this stream")
        open(go, "w").close()
        out.expect("^newest$")

    def test_a_reader_that_is_gone(self):
        daemon = self.daemon()
        worker = self.script("""
            import time
            for i in range(200):
                print("line", i, flush=True); time.sleep(0.002)
            """)
        agent, r = self.pipe_agent(daemon, "/usr/bin/python3", worker)
        os.close(r)
        daemon.order("world 1")
        daemon.expect(r"exited .* status=0")
        daemon.order("ended 0")
        self.assertEqual(agent.wait(DEADLINE), 0)
        self.assertEqual(self.text("dlrover-7.0-rank0.out"), "".join(f"line {i}\n" for i in range(200)))

    def test_a_reader_that_never_comes_back_does_not_hold_the_end(self):
        daemon = self.daemon()
        worker = self.script("print('z' * (1 << 20))")
        agent, r = self.pipe_agent(daemon, "/usr/bin/python3", worker)
        daemon.order("world 1")
        daemon.expect("exited")
        daemon.order("ended 0")
        self.assertEqual(agent.wait(DEADLINE), 0)
        self.assertNotIn("file", self.text("err"))
        kept = os.path.getsize(os.path.join(self.dir, "dlrover-7.0-rank0.out"))
        os.set_blocking(r, False)
        self.assertEqual(kept + len(os.read(r, 1 << 20)), (1 << 20) + 1)
        os.close(r)

    def test_stderr_tail_and_signature(self):
        daemon = self.daemon()
        worker = self.script("""
            import os
            def broken(x): raise ValueError(f"bad object at {x:#x}")
            broken(id(object()) + int(os.environ["TORCHELASTIC_RESTART_COUNT"]) * 64)
            """)
        self.start("/usr/bin/python3", worker)
        daemon.expect("agent")
        seen = set()
        for count in range(3):
            daemon.order(f"world {count + 1} restart={count}")
            match = daemon.expect(r"exited .* signature=(\d+) text=(.*)")
            seen.add(match[1])
            self.assertIn("ValueError: bad object", match[2])
        self.assertEqual(len(seen), 1)

    def test_error_file_comes_first(self):
        daemon = self.daemon()
        self.start("/bin/sh", "-c", """echo '{"message": {"message": "RuntimeError: from the file", "extraInfo": """
                   """{"py_callstack": "Traceback (most recent call last):\\n  File \\"a.py\\", line 3, in f\\n"""
                   """RuntimeError: from the file\\n"}}}' > $TORCHELASTIC_ERROR_FILE; echo noise >&2; exit 1""")
        daemon.expect("agent")
        daemon.order("world 1")
        self.assertIn("RuntimeError: from the file", daemon.expect(r"exited .* text=(.*)")[1])


if __name__ == "__main__":
    main()
