# SPDX-License-Identifier: Apache-2.0
"""What needs a process of its own: start-up, forks, hooks, no torch."""

import pathlib
import re
import signal
import time

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]


def test_versions_agree(dlrover):
    version = re.search(r"AC_INIT\(\[dlrover-slurm\], \[([^]]*)\]", (TOP / "configure.ac").read_text()).group(1)
    from dlrover_slurm import _library

    assert dlrover.__version__ == version == _library.library().dlrover_version().decode()
    with pytest.raises(ImportError, match="must agree"):
        _library._check_version("99.1.0")


def test_a_library_that_is_not_there_is_named(run_python):
    status, _, err = run_python("import dlrover_slurm; dlrover_slurm.load()", DLROVER_LIBRARY="/nonexistent/lib.so")
    assert status == 1 and "/nonexistent/lib.so" in err and "DLROVER_LIBRARY" in err


def test_one_warning_without_a_daemon(run_python, tmp_path):
    code = "import dlrover_slurm as d; d.load(); d.save(1, {'x': 1}); d.save(2, {}); print(d.load().step)"
    status, out, err = run_python(code)
    assert (status, out) == (0, "2\n")
    assert err.count("dlrover:") == 1 and "plain files" in err and len(err.splitlines()) == 1
    assert run_python("import dlrover_slurm as d; d.load()", RANK="1", WORLD_SIZE="2", DLROVER_LOCAL_DIR=str(tmp_path / "none"))[2] == ""


def test_another_number_of_ranks_begins_nothing_anew(run_python):
    assert run_python("import dlrover_slurm as d; d.save(1, {'x': 1})")[0] == 0
    code = "import dlrover_slurm as d\ntry:\n    d.load()\nexcept d.UnsupportedError as error:\n    print(error)"
    for rank in "01":
        assert "saved by 1 rank, this world has 2" in run_python(code, RANK=rank, WORLD_SIZE="2")[1]
    assert run_python("import dlrover_slurm as d; print(d.load().step)")[1] == "1\n"


def test_a_training_begun_anew_beside_newer_files_is_told(run_python):
    assert run_python("import dlrover_slurm as d; d.save(12, {'x': 1})")[0] == 0
    _, _, err = run_python("import dlrover_slurm as d; d.save(0, {}); d.save(1, {})")
    assert err.count("step 0 is saved beside") == 1 and "step-12.dlrover, which is newer" in err
    assert "beside" not in run_python("import dlrover_slurm as d; d.load(); d.save(2, {})")[2]


def test_a_file_cut_short_is_told_and_the_step_before_taken(run_python, tmp_path):
    program = "import dlrover_slurm as d; print(d.load().step)"
    assert run_python("import dlrover_slurm as d; d.save(1, {'x': 1}); d.save(2, {'x': 2})")[0] == 0
    newest = next(tmp_path.rglob("step-2.dlrover"))
    newest.write_bytes(newest.read_bytes()[:-1])
    _, out, err = run_python(program)
    assert out == "1\n" and f"{newest.name}" in err and "going on from step 1" in err
    next(tmp_path.rglob("step-1.dlrover")).write_bytes(b"x" * 50)
    status, out, err = run_python(program)
    assert status != 0 and "CorruptError" in err and "to begin anew" in err


def test_a_ledger_that_json_can_not_say_is_named(run_python):
    code = "import dlrover_slurm as d\ntry:\n    d.save(1, {}, ledger={1j})\nexcept d.InvalidError as error:\n    print(error)"
    assert "ledger: " in run_python(code)[1]


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_one_of_several_that_does_not_know_its_rank_is_refused(run_python, variable):
    code = "import dlrover_slurm as d\ntry:\n    d.load()\nexcept d.InvalidError as error:\n    print(error)"
    status, out, _ = run_python(code, **{variable: "4"})
    assert status == 0 and "one of 4 processes" in out and "--dlrover-elastic" in out
    assert run_python(code, **{variable: "1"})[1] == ""
    assert run_python(code, **{variable: "4", "RANK": "1", "WORLD_SIZE": "4"})[1] == ""


def test_arguments_of_a_wrong_kind_are_refused(run_python):
    code = """
import dlrover_slurm as d
calls = {
    "step": [lambda: d.save({"a": 1}, 5), lambda: d.save("3", {}), lambda: d.save(1.5, {}), lambda: d.report_step("x")],
    "between": [lambda: d.save(-1, {}), lambda: d.save(2**63, {}), lambda: d.save(2**70, {}), lambda: d.report_step(-1)],
    "prepare": [lambda: d.prepare("10GiB"), lambda: d.prepare(-1), lambda: d.prepare(2**64)],
    "replicated": [lambda: d.save(1, {}, replicated="no"), lambda: d.prepare({}, replicated=1)],
    "wait": [lambda: d.save(1, {}, wait=-1), lambda: d.save(1, {}, wait="5"), lambda: d.save(1, {}, wait=float("nan"))],
}
for word, each in calls.items():
    for call in each:
        try:
            call()
        except d.InvalidError as error:
            assert word in str(error), error
        else:
            raise AssertionError(word)
assert d.load() is None, "nothing was saved"
assert d.save(2**63 - 1, {}) and d.load().step == 2**63 - 1
"""
    status, _, err = run_python(code)
    assert status == 0, err


def test_works_without_torch_and_numpy(run_python):
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import dlrover_slurm as d
state = {"a": [1, 2.5, b"x" * 1000], "rng": d.rng_state()}
assert d.save(1, state)
back = d.load().state
assert back["a"] == state["a"] and back["rng"] == state["rng"]
assert not d.install_optimizer_hook()
d.report_step(3)
with d.phase("eval"):
    pass
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    status, _, err = run_python(code)
    assert status == 0, err


def test_a_forked_child_may_not_save(run_python):
    code = """
import os, dlrover_slurm as d
d.save(1, {"x": 1})
if os.fork() == 0:
    for call in (lambda: d.save(2, {}), d.load, d.world, lambda: d.report_step(1)):
        try:
            call()
            os._exit(1)
        except d.ForkedError:
            pass
    os._exit(0)
assert os.wait()[1] == 0
assert d.save(3, {})
"""
    status, _, err = run_python(code)
    assert status == 0, err


def test_data_loader_workers_and_the_hook(run_python):
    pytest.importorskip("torch")
    code = """
import torch, dlrover_slurm as d
d.save(0, {"x": torch.ones(3)})
d.install_optimizer_hook()
data = torch.utils.data.DataLoader(torch.arange(20.), batch_size=4, num_workers=2)
assert sum(batch.sum().item() for batch in data) == 190
assert d.save(1, {})
"""
    status, _, err = run_python(code)
    assert status == 0, err


HOOK = """
import torch, dlrover_slurm as d
from dlrover_slurm import _library, _session
seen = []
class Recorder:
    def __getattr__(self, name):
        return getattr(_library._library, name)
    def dlrover_report_step(self, context, step):
        seen.append(step)
        return 0
_library.library()
recorder = Recorder()
_library.library = lambda: recorder
def train(model, optimizer):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("early", [True, False])
def test_the_hook_counts_steps(run_python, early):
    pytest.importorskip("torch")
    code = HOOK + (
        "early = torch.optim.Adam(torch.nn.Linear(3, 1).parameters())\n" if early else ""
    ) + """
d.install_optimizer_hook()
d.install_optimizer_hook()
class Twice(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        return super().step(closure)
model = torch.nn.Linear(3, 1)
optimizer = Twice(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(3):
    train(model, optimizer)
    scheduler.step()
other = torch.nn.Linear(3, 1)
train(other, torch.optim.Adam(other.parameters()))
assert seen == [0, 1, 2], seen
d.save(10, {})
train(model, optimizer)
d.report_step(20)
train(model, optimizer)
assert seen == [0, 1, 2, 11], seen
"""
    status, _, err = run_python(code)
    assert status == 0, err


def test_an_optimizer_is_known_from_its_first_step_behind_the_first_call(run_python):
    """So that what it owns may be under way behind a save from a GPU, without a daemon too."""
    pytest.importorskip("torch")
    code = """
import torch
import dlrover_slurm as d
from dlrover_slurm import _hook, _optimizers
d.world()
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([parameter], lr=0.1)
parameter.grad = torch.ones(3)
optimizer.step()
assert optimizer in _optimizers._stepped
assert not _hook._counting
"""
    status, _, err = run_python(code)
    assert status == 0, err


def test_the_hook_is_there_by_itself_under_a_daemon(run_python):
    pytest.importorskip("torch")
    code = """
import torch, dlrover_slurm as d
from dlrover_slurm import _hook
try:
    d.world()
except d.UnavailableError:
    pass
_hook.install_if_managed()
assert _hook._counting
"""
    environment = dict(DLROVER_MANAGED="1", DLROVER_SOCKET="/nonexistent/s", DLROVER_TIMEOUT_MS="50")
    status, _, err = run_python(code, **environment)
    assert status == 0, err
    assert run_python(code, DLROVER_OPTIMIZER_HOOK="0", **environment)[0] == 1


def test_a_daemon_that_is_away_is_an_error_in_time(run_python):
    code = "import dlrover_slurm as d\ntry: d.load()\nexcept d.UnavailableError as e: print(e)"
    begun = time.monotonic()
    status, out, err = run_python(
        code, DLROVER_MANAGED="1", DLROVER_SOCKET="/nonexistent/s", DLROVER_TIMEOUT_MS="300"
    )
    assert status == 0 and "/nonexistent/s" in out, err
    assert time.monotonic() - begun < 20


def test_subscriptions_are_as_before_after_a_next_generation_that_failed(dlrover):
    from dlrover_slurm import _events

    subscription = dlrover.on_membership(lambda event: None)
    for _ in range(2):  # descriptors that are closed twice may be somebody else's by then
        with pytest.raises(dlrover.StaleError):
            with _events.suspended():
                raise dlrover.StaleError("the group is over")
    subscription.close()


AT_THE_END = """
import threading, time
import dlrover_slurm as d
from dlrover_slurm import _session
d.save(1, {"x": 1})
close = _session._Session.close
def told(session):
    print("closed", flush=True)
    close(session)
_session._Session.close = told
def saves():
    with _session._lock:
        holds.set()
        time.sleep(60)
holds = threading.Event()
if %s:
    threading.Thread(target=saves, daemon=True).start()
    holds.wait()
"""


@pytest.mark.parametrize("saving", [False, True])
def test_the_end_leaves_memory_to_a_thread_that_saves(run_python, saving):
    status, out, err = run_python(AT_THE_END % saving)
    assert (status, out, err.count("Error")) == (0, "" if saving else "closed\n", 0), err


LEFT = """
import signal, threading
import dlrover_slurm as d
from dlrover_slurm import _stay
from dlrover_slurm._library import library
d.save(1, {"x": 1})
real = library()
goes_on, closed = threading.Event(), threading.Event()
class Slow:
    def dlrover_next_generation(self, handle):
        goes_on.wait()
        return 0
    def dlrover_close(self, handle):
        closed.set()
    def __getattr__(self, name):
        return getattr(real, name)
_stay.library = Slow
def leave(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, leave)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    d.next_generation()
except KeyboardInterrupt:
    print("left")
for use in (d.next_generation, d.world, lambda: d.save(2, {"x": 1})):
    try:
        use()
    except d.StaleError as error:
        assert "signal" in str(error), error
        print("stale")
goes_on.set()
assert closed.wait(30)
print("closed")
"""


def test_a_next_generation_that_a_handler_has_left_is_the_last(run_python):
    """Its thread goes on in C, and what it opens is nobody's: it is closed."""
    status, out, err = run_python(LEFT)
    assert status == 0 and out.split() == ["left", "stale", "stale", "stale", "closed"], out + err


def test_members_of_the_package_are_documented(dlrover):
    for name in dlrover.__all__:
        member = getattr(dlrover, name)
        assert callable(member) or isinstance(member, str)
    assert (TOP / "python" / "dlrover_slurm" / "py.typed").exists()


VICTIM = """
import os, signal, sys, threading, dlrover_slurm as d
checkpoint = d.load()
start = checkpoint.step if checkpoint else 0
if not checkpoint:
    start = 1
    d.save(1, {"step": 1, "data": bytes([1]) * 3000000})
threading.Timer(float(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
for step in range(start + 1, 10**6):
    d.save(step, {"step": step, "data": bytes([step % 256]) * 3000000})
"""
CHECK = """
import dlrover_slurm as d
c = d.load()
assert c is not None and c.state["step"] == c.step and c.state["data"] == bytes([c.step % 256]) * 3000000
print(c.step)
"""


def test_killed_in_the_middle_the_older_step_stays(run_python):
    """Whenever the process dies, load() finds a whole step, and never an older one than before."""
    last = 0
    for i in range(8):
        assert run_python(VICTIM, str(0.15 + i * 0.013))[0] == -signal.SIGKILL
        status, out, err = run_python(CHECK)
        assert status == 0, err
        assert int(out) >= last
        last = int(out)
    assert last > 0


def test_the_collector_is_as_it_was_after_a_save(dlrover):
    """It waits during a save, also one that fails."""
    import gc

    assert gc.isenabled() and dlrover.save(1, {"x": [1]}) and gc.isenabled()
    state = []
    state.append(state)
    with pytest.raises(dlrover.UnsupportedError):
        dlrover.save(2, state)
    assert gc.isenabled()
    gc.disable()
    try:
        assert dlrover.save(3, {}) and not gc.isenabled()
    finally:
        gc.enable()
