# SPDX-License-Identifier: Apache-2.0
"""dlrover ckpt ls, show, verify, rm, rollback."""
import ctypes
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time

import h5py
import pytest

from conftest import DLROVER, flip, write_safetensors, write_sample


def states(ckpt, folder):
    """{step: state}, and the step that is marked as the newest"""
    (lineage,) = json.loads(ckpt("ls", folder, "--json")[0])["lineages"]
    newest = [c["train_step"] for c in lineage["checkpoints"] if c["newest"]]
    return {c["train_step"]: c["state"] for c in lineage["checkpoints"]}, newest[0] if newest else None


def test_ls_takes_any_of_the_folders(ckpt, lineage):
    write_sample(lineage.parent / "another", 7)
    shutil.copytree(lineage / "step-10.gen-0.1.3", lineage / "step-40.gen-0.1.3")
    out, _ = ckpt("ls", lineage.parent)
    assert out.count("lab/1000/jöb in ") == 2 and out.index("another") < out.index("lab%2F1000")
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert "complete (newest)" in rows["30"] and "incomplete" in rows["40"] and rows["20"].endswith("complete")
    assert states(ckpt, lineage) == ({10: "complete", 20: "complete", 30: "complete", 40: "incomplete"}, 30)
    for single in (lineage / "step-20.gen-0.1.3", f"{lineage}/step-20.gen-0.1.3/"):
        assert states(ckpt, single)[0] == {20: "complete"}
    (entry,) = json.loads(ckpt("ls", lineage / "latest", "--json")[0])["lineages"][0]["checkpoints"]
    folder = lineage / "step-30.gen-0.1.3"
    assert entry["ranks"] == 2 and entry["bytes"] == sum(f.stat().st_size for f in folder.iterdir())


def test_ls_names_what_is_damaged(ckpt, lineage):
    (lineage / "step-30.gen-0.1.3" / "rank-1.h5").unlink()
    flip(lineage / "step-20.gen-0.1.3.manifest", 60)
    os.truncate(lineage / "step-10.gen-0.1.3" / "rank-0.h5", 5000)
    out, _ = ckpt("ls", lineage)
    assert states(ckpt, lineage) == ({10: "damaged", 20: "damaged", 30: "damaged"}, None)
    assert "rank-1.h5: No such file" in out and "checksum is wrong" in out and "the length" in out


def test_show(ckpt, lineage):
    shown = json.loads(ckpt("show", lineage.parent, "--json")[0])
    assert (shown["train_step"], shown["world_size"], shown["lineage"]) == (30, 2, "lab/1000/jöb")
    tensors = {t["name"]: t for t in shown["tensors"]}
    assert tensors["large"] == {"name": "large", "dtype": "float32", "shape": [2, 300, 500], "pieces": 2, "bytes": 1200000}
    with h5py.File(lineage / "latest" / "index.h5") as index:
        names = {d.attrs["name"]: list(d.shape) for d in index["tensors"].values()}
    assert {name: t["shape"] for name, t in tensors.items()} == names
    assert shown["own_values"] == ["gap", "own"]
    assert [r["ledger_bytes"] for r in shown["ranks"]] == [4, 4] and shown["ranks"][0]["skeleton_bytes"] > 0
    out, _ = ckpt("show", lineage, "--step", 10)
    assert out.startswith("Step 10, generation 0.1.3\n") and "columns/of 東" in out and "2 x 300 x 500" in out


def test_show_passes_over_what_is_not_whole(ckpt, lineage):
    flip(lineage / "step-30.gen-0.1.3" / "rank-1.h5", 30)
    out, err = ckpt("show", lineage)
    assert out.startswith("Step 20,") and "passed over:" in err and "rank-1.h5" in err
    assert "rank-1.h5" in ckpt("show", lineage, "--step", 30, status=1)[1]


def place_of(path, name):
    with h5py.File(path) as file:
        (data,) = (d for d in file["chunks"].values() if d.attrs["name"] == name)
        return data.id.get_offset()


def test_verify_names_every_flipped_bit(ckpt, lineage):
    assert ckpt("verify", lineage)[0].count(": whole, 2 ranks, 1.3 MiB\n") == 1
    data = lineage / "step-30.gen-0.1.3"
    flip(data / "rank-0.h5", place_of(data / "rank-0.h5", "large") + 400000)
    flip(data / "rank-1.h5", place_of(data / "rank-1.h5", "single"))
    flip(data / "rank-1.h5", place_of(data / "rank-1.h5", "columns/of 東") + 1)
    flip(data / "index.h5", 2000)
    out, err = ckpt("verify", lineage, status=1)
    assert "DAMAGED" in out and "1 of 1 checkpoints are damaged" in err
    for part in ('rank-0.h5: the checksum of chunk "large"', 'rank-1.h5: the checksum of chunk "single"',
                 'rank-1.h5: the checksum of chunk "columns/of 東"', "index.h5 is not the index"):
        assert part in out
    assert out.count("\n") == 5
    assert "\r" not in err and "[" not in err  # no progress bar where there is no terminal
    assert "whole" in ckpt("verify", lineage, "--step", 20)[0]
    out, err = ckpt("verify", lineage.parent, "--all", status=1)
    assert out.count(": whole") == 2 and "1 of 3 checkpoints are damaged" in err


@pytest.mark.parametrize("where", [0, 20, 60, 4090, 4200, -1])
def test_verify_finds_a_bit_anywhere(ckpt, lineage, where):
    flip(lineage / "step-30.gen-0.1.3" / "rank-0.h5", where)
    assert "rank-0.h5" in ckpt("verify", lineage, status=1)[0]


def test_verify_finds_what_is_missing_or_exchanged(ckpt, lineage):
    data = lineage / "step-30.gen-0.1.3"
    os.replace(data / "rank-0.h5", data / "rank-1.h5")
    out, _ = ckpt("verify", lineage / "latest", status=1)
    assert "rank-0.h5: No such file" in out and "rank-1.h5 is not the file that the manifest names" in out
    (lineage / "step-20.gen-0.1.3.manifest").write_text("{}")
    assert "a manifest of a wrong size" in ckpt("verify", lineage, "--step", 20, status=1)[0]


def make_next_version(path):
    """As the next version of the format would write it: another number, a right checksum."""
    text = path.read_bytes()
    head, mark, _ = text.replace(b'"version": 1,', b'"version": 2,', 1).rpartition(b'\n "xxh3": ')
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.restype, xxh3.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    path.write_bytes(head + mark + b'"%016x"}\n' % xxh3(head, len(head)))


def test_the_next_version_is_refused_by_name(ckpt, lineage):
    manifest = lineage / "step-30.gen-0.1.3.manifest"
    before = manifest.read_bytes()
    make_next_version(manifest)
    said = f"{manifest}: a manifest is of version 2, and this dlrover reads version 1: a newer one has written it"
    out, err = ckpt("verify", lineage, status=1)
    assert "OF ANOTHER VERSION" in out and said in out and "1 of 1 checkpoints are of another version" in err
    assert said in ckpt("show", lineage, status=1)[1]
    assert ckpt("show", lineage, "--step", 20)[0].startswith("Step 20,")
    assert said in ckpt("ls", lineage)[0]
    flip(lineage / "step-20.gen-0.1.3" / "rank-0.h5", 20)
    assert "1 of 3 checkpoints are damaged" in ckpt("verify", lineage, "--all", status=1)[1]
    assert manifest.read_bytes() != before and manifest.exists()
    ckpt("rollback", lineage, "--step", 10, "--yes")
    assert not manifest.exists() and ckpt("show", lineage)[0].startswith("Step 10,")


def test_rm(ckpt, lineage):
    assert "no terminal to ask on" in ckpt("rm", lineage, "--step", 10, status=2)[1]
    assert "--force" in ckpt("rm", lineage, "--step", 30, "--yes", status=2)[1]
    assert "no checkpoint of step 11" in ckpt("rm", lineage, "--step", 10, 11, "--yes", status=1)[1]
    assert states(ckpt, lineage) == ({10: "complete", 20: "complete", 30: "complete"}, 30)
    ckpt("rm", lineage, "--older-than-step", 20, "--yes")
    assert sorted(os.listdir(lineage)) == ["latest", "step-20.gen-0.1.3", "step-20.gen-0.1.3.manifest", "step-30.gen-0.1.3",
                                           "step-30.gen-0.1.3.manifest"]
    ckpt("rm", lineage, "--step", 30, "--yes", "--force")
    assert os.readlink(lineage / "latest") == "step-20.gen-0.1.3"
    ckpt("rm", lineage, "--step", 20, "--yes", "--force")
    assert os.listdir(lineage) == []


def test_rm_of_what_writers_left(ckpt, lineage):
    for step in (20, 30):
        (lineage / f"step-{step}.gen-0.1.3.manifest").unlink()
    write_sample(lineage, 25)
    out, err = ckpt("rm", lineage, "--incomplete", "--yes")
    assert "step-20" in out and "may be being written" in err
    assert states(ckpt, lineage)[0] == {10: "complete", 25: "complete", 30: "incomplete"}
    ckpt("rm", lineage, "--incomplete", "--yes", "--force")
    assert states(ckpt, lineage) == ({10: "complete", 25: "complete"}, 25)


def test_rm_leaves_what_links_name(ckpt, lineage, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "important.txt").write_text("mine")
    link = lineage / "step-3.gen-0.0.0"
    link.symlink_to(elsewhere)
    assert "step-3" in ckpt("rm", lineage, "--incomplete", "--yes")[0]
    assert not link.is_symlink() and (elsewhere / "important.txt").read_text() == "mine"


def on_terminal(words, answer=b"", columns=0, halting=False):
    """Runs dlrover ckpt on a terminal and types an answer when asked; (exit status, what was on the screen). ``columns``: 0: not known.
    ``halting``: it stands still for longer than a bar is left as it is, again and again."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    child = subprocess.Popen([DLROVER, "ckpt", *map(str, words)], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    if halting:
        threading.Thread(target=halt_and_go, args=(child,)).start()
    screen, asked = b"", False
    while select.select([master], [], [], 60)[0]:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        screen += part
        if b"[y/N]" in screen and not asked:
            asked = True
            os.write(master, answer)
    os.close(master)
    return child.wait(60), screen.decode()


def halt_and_go(child):
    while child.poll() is None:
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.12)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.002)


@pytest.fixture
def large(ckpt, tmp_path):
    """A lineage of step 3, 16 MiB in 64 tensors."""
    write_safetensors(tmp_path / "in", {f"t{i}": ("F32", [1 << 16], bytes(1 << 18)) for i in range(64)})
    ckpt("import", tmp_path / "in", "--to", tmp_path / "large", "--lineage", "l", "--step", 3)
    return tmp_path / "large" / "l"


BAR = re.compile(r"\r\x1b\[K([^\r\n]+)(?=\r\x1b)")


def bars(words, columns=0):
    """What was drawn on one line, again and again, until there was some; and what stood on the screen at the end."""
    drawn, end = [], time.monotonic() + 60
    while not drawn and time.monotonic() < end:
        status, screen = on_terminal(words, columns=columns, halting=True)
        assert status == 0, screen
        drawn = BAR.findall(screen)
    assert drawn, screen
    return drawn, screen.rpartition("\r\x1b[K")[2]


@pytest.mark.parametrize("what", ["verify step 3", "export"])
def test_a_terminal_is_shown_how_far_it_is(large, tmp_path, what):
    words = ["verify", large] if what != "export" else ["export", large, "--to", "safetensors", tmp_path / "out", "--force"]
    drawn, left = bars(words)
    for bar in drawn:
        form = rf"{what}  \[(#*)( *)\] +(\d+) %  ([\d.]+) (B|KiB|MiB) of 16 MiB(, [\d.]+ \w+/s, .* left)?"
        match = re.fullmatch(form, bar)
        assert match, bar
        hashes, rest, percent = match.group(1, 2, 3)
        assert len(hashes + rest) == 24 and 24 * int(percent) // 100 <= len(hashes) <= 24 * (int(percent) + 1) // 100
    assert left.count("\n") == 1 and ("whole" in left if what != "export" else "64 tensors" in left)
    narrow, _ = bars(words, columns=30)
    assert all(len(bar) == 29 and bar.startswith(f"{what}  [") for bar in narrow), narrow


def test_a_person_is_asked(ckpt, lineage):
    status, screen = on_terminal(["rm", lineage, "--step", "10"], b"n\n")
    assert status == 0 and "step-10.gen-0.1.3" in screen and "Nothing was changed" in screen
    assert states(ckpt, lineage)[0][10] == "complete"
    status, screen = on_terminal(["rm", lineage, "--step", "10"], b"y\n")
    assert status == 0 and 10 not in states(ckpt, lineage)[0]


def test_rollback_and_back(ckpt, lineage):
    assert "no terminal" in ckpt("rollback", lineage, "--step", 10, status=2)[1]
    assert "no complete checkpoint to go back to" in ckpt("rollback", lineage, "--step", 15, "--yes", status=1)[1]
    out, _ = ckpt("rollback", lineage, "--step", 10, "--yes")
    assert "goes on from step-10.gen-0.1.3" in out
    assert states(ckpt, lineage) == ({10: "complete", 20: "suspect", 30: "suspect"}, 10)
    assert os.readlink(lineage / "latest") == "step-10.gen-0.1.3"
    assert ckpt("show", lineage)[0].startswith("Step 10,")
    assert "(suspect)" in ckpt("show", lineage, "--step", 30)[0]
    assert ckpt("verify", lineage, "--all")[0].count("whole") == 3
    assert "nothing to remove" in ckpt("rm", lineage, "--incomplete", "--yes", "--force")[0]
    assert "newest already" in ckpt("rollback", lineage, "--step", 10, "--yes")[0]
    write_sample(lineage, 15, 2)  # a later job went on from step 10
    assert states(ckpt, lineage)[1] == 15
    ckpt("rollback", lineage, "--undo", "--yes")
    assert states(ckpt, lineage) == ({10: "complete", 15: "complete", 20: "complete", 30: "complete"}, 15)
    assert "no suspect checkpoint" in ckpt("rollback", lineage, "--undo", "--yes", status=1)[1]
    ckpt("rollback", lineage, "--step", 10, "--yes")
    ckpt("rm", lineage, "--suspect", "--yes")
    assert states(ckpt, lineage)[0] == {10: "complete"} and len(os.listdir(lineage)) == 3


def test_a_rollback_needs_a_whole_target(ckpt, lineage):
    (lineage / "step-10.gen-0.1.3" / "rank-0.h5").unlink()
    assert "rank-0.h5" in ckpt("rollback", lineage, "--step", 10, "--yes", status=1)[1]
    assert states(ckpt, lineage)[1] == 30


def test_bad_places(ckpt, lineage, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    (tmp_path / "empty").mkdir()
    for words, sentence in [(["ls", tmp_path / "none"], "no such folder"), (["ls", file], "is no folder"),
                            (["show", tmp_path / "empty"], "holds no checkpoints of ours"),
                            (["show", lineage, "--step", "11"], "no checkpoint of step 11"),
                            (["ls", "x" * 5000], "name too long")]:  # fmt: skip
        _, err = ckpt(*words, status=1)
        assert sentence in err.replace("File name", "name") and err.count("\n") == 1
    write_sample(lineage.parent / "another", 7)
    assert "holds 2 lineages" in ckpt("show", lineage.parent, status=2)[1]
    os.unlink(lineage / "step-30.gen-0.1.3.manifest")
    assert "is incomplete" in ckpt("show", lineage, "--step", 30, status=1)[1]
    assert "give the folder of the lineage" in ckpt("rm", lineage / "latest", "--step", 10, "--yes", status=2)[1]


@pytest.fixture
def foreign(ckpt):
    """A place and a way to run dlrover ckpt where somebody who may not write has to do it: for root, nobody."""
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        program = shutil.copy(DLROVER, top)
        who = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}

        def run(*words):
            done = subprocess.run([program, "ckpt", *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL, **who)
            return done.returncode, done.stdout, done.stderr

        yield top, run
        for path, _, _ in os.walk(top):
            os.chmod(path, 0o755)


def test_a_folder_that_may_only_be_read(foreign):
    top, run = foreign
    folder = os.path.join(top, "lineage")
    write_sample(folder, 10)
    write_sample(folder, 20)
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o555)
    assert run("verify", folder, "--all")[0] == 0
    for words in (["rm", folder, "--step", "10", "--yes"], ["rollback", folder, "--step", "10", "--yes"]):
        status, _, err = run(*words)
        assert status == 1 and "Permission denied" in err and err.count("\n") == 1
    assert run("export", folder, "--to", "safetensors", f"{folder}/o", "--name", "large")[0] == 1
    assert sorted(os.listdir(folder)) == ["latest", "step-10.gen-0.1.3", "step-10.gen-0.1.3.manifest", "step-20.gen-0.1.3",
                                          "step-20.gen-0.1.3.manifest"]
    os.chmod(folder, 0o000)
    status, _, err = run("ls", folder)
    assert status == 1 and "Permission denied" in err


def test_names_that_a_terminal_would_obey(ckpt, tmp_path):
    folder = tmp_path / "top" / "evil\x1b[2J\x9b1m"
    write_sample(folder, 10)
    (folder / "step-10.gen-0.1.3" / "rank-1.h5").unlink()
    for words, status in ([["ls", tmp_path / "top"], 0], [["ls", "--json", tmp_path / "top"], 0], [["verify", tmp_path / "top"], 1],
                          [["show", tmp_path / "top"], 1], [["rm", folder, "--step", "10", "--yes", "--force"], 0]):  # fmt: skip
        out, err = ckpt(*words, status=status)
        assert "\x1b" not in out + err and "\x9b" not in out + err
