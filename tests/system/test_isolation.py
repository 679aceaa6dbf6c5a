# SPDX-License-Identifier: Apache-2.0
"""Users are strangers to each other: what alice can do to bob's group is nothing. One test for each message and each kind of file."""
import json
import os
import pathlib
import re
import subprocess

import pytest
from cluster import TOP, Cluster, prefix, wait_until
from pmix_case import MISSING, MPI_SETTINGS, build, folder

BUILD = pathlib.Path(os.environ.get("DLROVER_BUILD", "."))
PROBE = BUILD / "tests" / "system" / "message_probe"
HEAT = prefix() / "libexec" / "dlrover" / "examples" / "heat"
MESSAGES = [line.split('"')[1] for line in (pathlib.Path(__file__).parent / "message_probe.cpp").read_text().splitlines()
            if line.strip().startswith("attempt<")]


def test_every_message_is_tried():
    body = re.search(r"^union Body \{(.*?)^\}", (TOP / "proto" / "local.fbs").read_text(), re.M | re.S)[1]
    there = set(re.findall(r"\w+", re.sub(r"//.*", "", body)))
    assert len(there) > 90 and there <= set(MESSAGES), sorted(there - set(MESSAGES))


@pytest.fixture(scope="module")
def cluster():
    with Cluster("isolation", nodes=2, arguments=("--users", "alice,bob", "--share", str(BUILD.resolve()))) as running:
        yield running


@pytest.fixture(scope="module")
def bobs_job(cluster):
    """(job id, generation) of a long elastic job of bob on both nodes, with at least one complete checkpoint."""
    job = cluster.start("srun", "--dlrover-elastic", "-N2", "-n2", "-J", "bobsjob", str(HEAT), "--size=64", "--steps=100000000", "--save-every=50",
                        "--step-us=2000", user="bob")
    job_id = cluster.job_id("bobsjob")

    def status():
        done = cluster.run("dlrover", "status", str(job_id), "--json", user="bob")
        groups = json.loads(done.stdout)["groups"] if done.returncode == 0 else []
        return groups[0] if groups and any(c["complete"] for c in groups[0]["checkpoints"]) else None

    group = wait_until(status, 60, "a complete checkpoint of bob's job")
    yield job_id, group["generation"]
    cluster.run("scancel", str(job_id), user="bob")
    job.wait(timeout=60)


@pytest.fixture(scope="module")
def probe_results(cluster, bobs_job):
    job_id, generation = bobs_job
    done = cluster.run(str(PROBE), "/run/dlrover/dlroverd.sock", str(job_id), "0", str(generation["term"]), str(generation["number"]), user="alice",
                       node="n1", timeout=180)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(lines) == len(MESSAGES), done.stdout + done.stderr
    return {name: (outcome, text) for name, outcome, text in lines}


def test_the_probe_can_see_something_at_all(cluster, bobs_job):
    """The same probe as bob is granted what is his: the refusals of the other tests mean something."""
    job_id, generation = bobs_job
    done = cluster.run(str(PROBE), "/run/dlrover/dlroverd.sock", str(job_id), "0", str(generation["term"]), str(generation["number"]), user="bob",
                       node="n1", timeout=180)
    granted = [line.split("\t")[0] for line in done.stdout.splitlines() if "\tGRANTED\t" in line]
    assert "StatusRequest" in granted and "EventsRequest" in granted, done.stdout
    assert "RegisterStep" not in granted and "EndStep" not in granted, done.stdout


@pytest.mark.parametrize("message", MESSAGES)
def test_message_is_refused(probe_results, message):
    outcome, text = probe_results[message]
    assert outcome in ("refused", "closed", "silent"), f"{message}: {outcome} {text}"


def test_bobs_job_did_not_notice(cluster, bobs_job, probe_results):
    job_id, generation = bobs_job
    group = json.loads(cluster.run("dlrover", "status", str(job_id), "--json", user="bob", check=True).stdout)["groups"][0]
    assert group["generation"] == generation and group["state"] == "running"


def test_alice_sees_nothing_on_the_command_line(cluster, bobs_job):
    job_id, _ = bobs_job
    for command in (["status"], ["status", str(job_id)], ["events", str(job_id)]):
        for node in ("ctl", "n1", "n2"):
            done = cluster.run("dlrover", *command, user="alice", node=node)
            assert "bob" not in done.stdout and str(job_id) not in done.stdout, (node, command, done.stdout)


def files_of(cluster, folder):
    """Every file below `folder` on n1 with its owner and mode, as root sees it."""
    done = cluster.run("find", folder, "-printf", "%p %U %m %y\n", user="root", node="n1")
    return [line.rsplit(" ", 3) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("folder", ["/run/dlrover", "/etc/dlrover", "/dev/shm"])
def test_alice_can_write_no_file_of_ours(cluster, bobs_job, folder):
    for path, _, _, kind in files_of(cluster, folder):
        if path == "/dev/shm" or kind == "s":
            continue
        assert cluster.run("test", "-w", path, user="alice", node="n1").returncode != 0, path


@pytest.mark.skipif(bool(MISSING), reason="needs " + " and ".join(MISSING))
def test_alice_does_not_see_the_files_of_bobs_pmix_server(cluster, bobs_job):
    there = [(path, kind) for path, _, _, kind in files_of(cluster, "/tmp") if re.match(r"/tmp/dlrover-[^/]+/pmix(/|$)", path)]
    assert {kind for _, kind in there} >= {"d", "f"}, there

    def looks(user, path):
        return cluster.run("sh", "-c", f"ls {path}/ || head -c 1 {path}", user=user, node="n1").returncode == 0

    assert not [path for path, _ in there if looks("alice", path)]
    assert all(looks("bob", path) for path, kind in there if kind in "df"), "nothing but who she is keeps alice away"


def test_memory_and_descriptors_of_others_are_closed(cluster, bobs_job):
    """The arenas are memfds: reachable only through /proc of the daemon, the keeper and bob's own processes."""
    ours = [p for node, p in cluster.processes(user_only=False)
            if node == "n1" and p.command and (any(word in p.command[0] for word in ("dlroverd", "dlrover-keeper")) or p.uid != 0)]
    assert len(ours) >= 3, ours
    for process in ours:
        for name in ("mem", "environ", "fd", "maps"):
            path = f"/proc/{process.inner_pid}/{name}"
            done = cluster.run("sh", "-c", f"ls {path}/ || cat {path}", user="alice", node="n1")
            assert done.returncode != 0, (process, path)


def test_bobs_other_programs_do_not_reach_into_the_helpers(cluster, bobs_job):
    def readable(process, name):
        path = f"/proc/{process.inner_pid}/{name}"
        return cluster.run("sh", "-c", f"ls {path}/ || cat {path}", user="bob", node="n1").returncode == 0

    bobs = [p for node, p in cluster.processes(user_only=False) if node == "n1" and p.uid != 0 and p.command]
    helpers = [p for p in bobs if p.command[0].rpartition("/")[2] in ("dlrover-mover", "dlrover-writer", "dlrover-pmixd")]
    assert helpers, bobs
    assert not [(p, name) for p in helpers for name in ("environ", "fd", "maps") if readable(p, name)]
    ranks = [p for p in bobs if p.command[0].endswith("heat")]
    assert ranks and all(readable(ranks[0], name) for name in ("environ", "fd", "maps")), "nothing else keeps bob away"


def test_alice_can_signal_nobody(cluster, bobs_job):
    targets = [p for node, p in cluster.processes(user_only=False) if node == "n1" and p.command
               and ("dlrover" in p.command[0] or "heat" in p.command[0])]
    assert targets
    for process in targets:
        done = cluster.run("sh", "-c", f"kill -0 {process.inner_pid}", user="alice", node="n1")
        assert done.returncode != 0, process


SAVE_LOOP = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
context, save = ctypes.c_void_p(), ctypes.c_void_p()
begin, abort = lib.dlrover_save_begin, lib.dlrover_save_abort
begin.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
abort.argtypes = [ctypes.c_void_p]
if lib.dlrover_open(ctypes.byref(context)) != 0:
    sys.exit("no context")
step = 0
while True:
    step += 1
    if begin(context, step, 1, ctypes.byref(save)) != 0:
        sys.exit("no save")
    abort(save)
    if step == 1000:
        print("looping", flush=True)
"""


def newest_complete(cluster, job_id, user):
    groups = json.loads(cluster.run("dlrover", "status", str(job_id), "--json", user=user, check=True).stdout)["groups"]
    return max((c["train_step"] for g in groups for c in g["checkpoints"] if c["complete"]), default=-1)


def test_a_loop_of_saves_given_up_does_not_stop_bobs_checkpoints(cluster, bobs_job):
    job_id, generation = bobs_job
    loop = cluster.start("srun", "--dlrover-elastic", "-w", "n1", "-N1", "-n1", "--mem=200M", "-J", "saveloop", "python3", "-c", SAVE_LOOP,
                         str(prefix() / "lib" / "libdlrover.so.0"), user="alice")
    try:
        assert loop.stdout.readline() == "looping\n", loop.communicate(timeout=60)[1]
        before = newest_complete(cluster, job_id, "bob")
        wait_until(lambda: newest_complete(cluster, job_id, "bob") >= before + 500, 60, "ten more checkpoints of bob's job", 0.2)
        assert loop.poll() is None, loop.stderr.read()
        group = json.loads(cluster.run("dlrover", "status", str(job_id), "--json", user="bob", check=True).stdout)["groups"][0]
        assert group["generation"] == generation and group["state"] == "running"
    finally:
        cluster.run("scancel", "--name=saveloop", user="alice")
        loop.communicate(timeout=60)


def test_the_peer_port_lets_no_user_in(cluster, bobs_job):
    """A user connects to the daemons' port: no greeting is answered from an unprivileged source port, and the connection ends."""
    ports = cluster.run("sh", "-c", "ss -Hltnp | grep dlroverd || true", user="root", node="n1").stdout.split()
    port = next(word.rsplit(":", 1)[1] for word in ports if ":" in word and word.rsplit(":", 1)[1].isdigit())
    script = ("import socket,sys\n"
              f"s=socket.create_connection(('n2',{port}),5)\n"
              "s.settimeout(10)\n"
              "s.sendall(b'\\x10\\0\\0\\0'+b'x'*16)\n"
              "data=b''\n"
              "try:\n"
              "    while True:\n"
              "        part=s.recv(4096)\n"
              "        if not part: break\n"
              "        data+=part\n"
              "except ConnectionResetError: pass\n"
              "sys.exit(1 if data else 0)\n")
    done = cluster.run("python3", "-c", script, user="alice", node="n1")
    assert done.returncode == 0, done.stdout + done.stderr


#: What comes to its port it sends on to another one, and back.
RELAY = """
import socket, sys, threading
def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
while True:
    mine, other = door.accept()[0], socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for ends in ((mine, other), (other, mine)):
        threading.Thread(target=copy, args=ends, daemon=True).start()
"""


@pytest.mark.skipif(bool(MISSING), reason="needs " + " and ".join(MISSING))
def test_alice_is_no_rank_of_bobs_program(cluster):
    """She knows port and namespace, says that she is bob, and has no use of it. Where the same connection is bob's she is let in: it is the kernel's word alone that keeps her out."""
    cluster.work.chmod(0o777)
    files, program, stranger = folder(cluster, "posed"), cluster.work / "mpi_program", build(cluster, "pmix_stranger")
    subprocess.run(["mpicc", "-O1", "-o", str(program), str(TOP / "tests" / "system" / "mpi_program.c")], check=True)
    job = cluster.start("env", *MPI_SETTINGS, "srun", "--dlrover-elastic", "--dlrover-pmix=yes", "-N2", "-n2", "--mem=200M", "-J", "posed", str(program), "hold", str(files), user="bob")
    try:
        wait_until(lambda: len(list(files.glob("held-*"))) == 2 or job.poll() is not None, 60, "two ranks of bob's program")
        rank = next(p for node, p in cluster.processes() if node == "n1" and p.command[:1] == [str(program)])
        variables = {key: value for key, value in rank.environment().items() if key.startswith("PMIX_")}
        port = next(re.search(r"tcp4://127\.0\.0\.1:(\d+)", value)[1] for key, value in variables.items() if key.startswith("PMIX_SERVER_URI"))
        variables.update(PMIX_SECURITY_MODE="native", POSE_AS=f"{rank.uid}:{os.stat(f'/proc/{rank.pid}').st_gid}")

        def pose(user, by_port):
            words = [f"{key}={value.replace(f':{port}', f':{by_port}')}" for key, value in variables.items()]
            return cluster.run("env", *words, stranger, user=user, node="n1", timeout=60).stdout

        let_in = f"init SUCCESS {variables['PMIX_NAMESPACE']} {variables['PMIX_RANK']}\nsize 2\n"
        refused = pose("alice", port)
        assert refused.startswith("init ") and "SUCCESS" not in refused and "size" not in refused, refused
        assert pose("bob", port) == let_in
        relay = cluster.start("python3", "-c", RELAY, port, user="bob", node="n1")
        try:
            assert pose("alice", relay.stdout.readline().strip()) == let_in
        finally:
            relay.kill()
            relay.communicate()
        assert pose("alice", port) == refused
        (files / "go").touch()
        out, err = job.communicate(timeout=60)
        assert job.returncode == 0 and "rank 1: size 2\n" in out, out + err
    finally:
        cluster.run("scancel", "--name=posed", user="bob")
        job.communicate(timeout=60)
    events = cluster.events(cluster.job_id("posed"))
    assert len({str(e["generation"]) for e in events if e["kind"] == "world-published"}) == 1, events
    assert not [e for e in events if e["kind"] in ("worker-failed", "warning")], events
