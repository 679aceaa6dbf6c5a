#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The real thing: two clusters at once, every fault, and nothing left behind. Needs root and Slurm, not DLRover.
# Cluster A has its state below /run, as by default; cluster B below /tmp, where the private /tmp of the hosts hides it.

bats_require_minimum_version 1.5.0
load ../eventually

minicluster="$BATS_TEST_DIRNAME/../../contrib/minicluster"

setup_file() {
    [ "$(id -u)" = 0 ] || { echo "root is needed" >&2; return 1; }
    export A="test-$$-a" B="test-$$-b" B_DIR="$BATS_FILE_TMPDIR/clusters"
    export TRACES_BEFORE="$BATS_FILE_TMPDIR/traces-before"
    traces >"$TRACES_BEFORE"
    "$minicluster" start --name "$A" --nodes 3 --no-dlrover --gpus-per-node 4 --conf SlurmdTimeout=4 \
        --conf Weight=7 --conf MaxTime=90 3>&- &
    local a=$!
    DLROVER_MINICLUSTER_DIR=$B_DIR "$minicluster" start --name "$B" --nodes 2 --no-dlrover --users carol 3>&-
    wait "$a"
}

teardown_file() {
    local name
    for name in "$A" "$A-f" "$A-k" "$A-x" "$A-m" "$A-s" "$A-d"; do
        "$minicluster" stop --name "$name"
    done
    DLROVER_MINICLUSTER_DIR=$B_DIR "$minicluster" stop --name "$B"
}

a() { local command=$1; shift; "$minicluster" "$command" --name "$A" "$@"; }
b() { local command=$1; shift; DLROVER_MINICLUSTER_DIR=$B_DIR "$minicluster" "$command" --name "$B" "$@"; }

# All that our test clusters could leave on the machine, and the machine's mounts and links.
traces() {
    find /sys/fs/cgroup -type d -path '*dlrover-minicluster.test-*' -prune || true
    ls -d /run/dlrover-minicluster/test-* /etc/dlrover /var/log/dlrover /var/spool/slurmd 2>/dev/null || true
    grep -E 'test-[0-9]+-|minicluster' /proc/self/mountinfo || true
    ip -o link show | grep -E 'core|sw-|to-n|up-n' || true
    pgrep -f 'mcluster/reaper.p[y] test-' || true
}

# All nodes are asked for: Slurm 22.05 answers for a single one from a state that it may not have refreshed.
slurm_state() { a exec -- sinfo -h -N -o '%N %T' | awk -v node="$1" '$1 == node { print $2 }'; }
state_is() {
    local state
    state=$(slurm_state "$1")
    echo "$1 is $state"
    [ "$state" = "$2" ]
}
link_is() { a status | grep -Eq "^$1 +[0-9.]+ +on +$2 "; }

# talk HOST: a connection from ctl to HOST; prints "silence", "closed" or "reset" 3 s after `ready` was printed.
talk() {
    a exec --node "$1" -- python3 -c '
import socket, time
server = socket.create_server(("", 7777))
connection, _ = server.accept()
time.sleep(60)' &
    a exec -- python3 -c '
import socket, sys, time
for attempt in range(100):
    try:
        peer = socket.create_connection((sys.argv[1], 7777), 5)
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
print("ready", flush=True)
peer.settimeout(3)
try:
    print("closed" if not peer.recv(1) else "data")
except TimeoutError:
    print("silence")
except ConnectionResetError:
    print("reset")' "$1"
}

@test "two clusters run side by side, with the same names and addresses" {
    [ "$(a exec -- scontrol -o show config | grep -c "ClusterName *= $A")" = 1 ]
    [ "$(b exec -- scontrol -o show config | grep -c "ClusterName *= $B")" = 1 ]
    [ "$(a exec --user alice -- srun -N3 hostname | sort | xargs)" = "n1 n2 n3" ]
    [ "$(b exec --user carol -- srun -N2 hostname | sort | xargs)" = "n1 n2" ]
    run "$minicluster" list
    [[ "$output" == *"$A"* ]]
}

@test "hosts have their own processes, network and folders, and share home and work" {
    a exec --node n1 -- touch /tmp/mine /run/mine /dev/shm/mine /var/log/mine
    run ! a exec --node n2 -- ls /tmp/mine /run/mine /dev/shm/mine /var/log/mine
    [ ! -e /tmp/mine ] && [ ! -e /run/mine ] && [ ! -e /dev/shm/mine ]
    a exec --node n1 --user alice -- sh -c 'echo hello >~/note; echo work >$MINICLUSTER_WORK/note-alice'
    [ "$(a exec --node n2 --user alice -- sh -c 'cat ~/note $MINICLUSTER_WORK/note-alice' | xargs)" = "hello work" ]
    run ! a exec --node n2 --user bob -- sh -c 'cat ~alice/note'
    [ "$(a exec --node n1 -- cat /proc/1/comm)" = python3 ]
    [ "$(a exec --node n1 -- ps ax | grep -c slurmctld)" = 0 ]
    [ "$(a exec --node n2 -- ls /sys/class/net | xargs)" = "eth0 lo" ]
    a exec --node n2 -- munge -n | grep -q MUNGE
}

@test "exec keeps exit codes, streams, folder and signals" {
    run -7 a exec -- sh -c 'exit 7'
    run -137 a exec -- sh -c 'kill -9 $$'
    run -127 a exec -- no-such-command
    run -2 a exec --user nobody-known -- true
    [ "$(echo text | a exec --node n1 --user bob -- cat)" = text ]
    # shellcheck disable=SC2154  # bats sets stderr
    run --separate-stderr a exec -- sh -c 'echo out; echo err >&2'
    [ "$output" = out ] && [ "$stderr" = err ]
    cd "$BATS_TEST_DIRNAME"
    [ "$(a exec --node n3 --user alice -- pwd)" = "$BATS_TEST_DIRNAME" ]
    cd /tmp/ && [ "$(a exec --user alice -- sh -c 'echo $HOME $USER $(id -un)')" = "/run/dlrover-minicluster/$A/home/alice alice alice" ]
    "$minicluster" exec --name "$A" -- sh -c 'trap "echo term >$MINICLUSTER_WORK/got; exit 3" TERM; echo >$MINICLUSTER_WORK/armed; while :; do sleep 0.05; done' 3>&- &
    local pid=$!
    eventually 10 test -e "/run/dlrover-minicluster/$A/work/armed"
    kill -TERM "$pid"
    local code=0
    wait "$pid" || code=$?
    [ "$code" = 3 ]
    [ "$(cat "/run/dlrover-minicluster/$A/work/got")" = term ]
    # Under nohup, too, a command hears that its caller is gone.
    nohup "$minicluster" exec --name "$A" --user alice -- sleep 1234567 >/dev/null 2>&1 3>&- &
    pid=$!
    eventually 10 pgrep -f "^sleep 123456[7]"
    kill -KILL "$pid"
    code=0
    wait "$pid" || code=$?
    [ "$code" = 137 ]
    eventually 10 sh -c '! pgrep -f "^sleep 123456[7]"'
}

@test "a pseudo-terminal reaches the command" {
    run script -qec "'$minicluster' exec --name '$A' --node n1 -- tty" /dev/null
    [[ "$output" == /dev/pts/* ]]
}

@test "--conf, GPUs and batch jobs" {
    a exec -- scontrol -o show node n1 | grep -q 'Weight=7 '
    a exec -- scontrol -o show part main | grep -q 'MaxTime=01:30:00'
    [ "$(a exec --user alice -- srun -N1 --gpus-per-node=2 sh -c 'echo $CUDA_VISIBLE_DEVICES')" = 0,1 ]
    a exec --node n1 --user alice -- sh -c '[ -c $(dirname $SLURM_CONF)/../dev/gpu3 ]'
    a exec --user alice -- sbatch -W -N2 -o "/run/dlrover-minicluster/$A/home/alice/out" --wrap 'srun hostname'
    [ "$(a exec --user alice -- sh -c 'sort ~/out' | xargs)" = "n1 n2" ]
}

@test "power-off: peers hear nothing, Slurm marks the node down, it comes back" {
    talk n2 >"$BATS_TEST_TMPDIR/talk" 3>&- &
    local talker=$!
    eventually 10 grep -q ready "$BATS_TEST_TMPDIR/talk"
    a kill-node n2
    wait "$talker"
    grep -q silence "$BATS_TEST_TMPDIR/talk"
    a status | grep -Eq '^n2 +[0-9.]+ +off '
    run -1 a exec --node n2 -- true
    [[ "$output" == *"n2 is not running"* ]]
    run -1 a kill-node n2
    eventually 30 state_is n2 'down*'
    [ "$(a exec --user alice -- srun -N2 hostname | sort | xargs)" = "n1 n3" ]
    a start-node n2
    state_is n2 idle
    [ "$(a exec --user alice -- srun -N3 hostname | sort | xargs)" = "n1 n2 n3" ]
}

@test "abrupt death: peers' connections end at once" {
    talk n3 >"$BATS_TEST_TMPDIR/talk" 3>&- &
    local talker=$!
    eventually 10 grep -q ready "$BATS_TEST_TMPDIR/talk"
    a kill-node --abrupt n3
    wait "$talker"
    grep -Eq 'closed|reset' "$BATS_TEST_TMPDIR/talk"
    a start-node n3
    state_is n3 idle
}

@test "cut and healed links, both ways and one way" {
    local ping="ping -c1 -W1"
    a exec -- $ping n1
    a cut-link n1
    link_is n1 cut
    run ! a exec -- $ping n1
    run ! a exec --node n1 -- $ping n2
    a exec --node n2 -- $ping n3
    a heal-link n1
    link_is n1 up
    eventually 5 a exec -- $ping n1
    # One way: the echo request arrives though no answer does, or it does not arrive.
    received() { a exec --node n1 -- sh -c "awk '/^Icmp: [0-9]/ {print \$2}' /proc/net/snmp"; }
    local before
    before=$(received)
    a cut-link --one-way out n1
    link_is n1 'cut out'
    run ! a exec -- $ping n1
    [ "$(received)" -gt "$before" ]
    a heal-link n1
    eventually 5 a exec -- $ping n1
    a cut-link --one-way in n1
    link_is n1 'cut in'
    before=$(received)
    run ! a exec -- $ping n1
    [ "$(received)" = "$before" ]
    a heal-link n1
    eventually 30 state_is n1 idle
}

@test "two sides that do not hear each other, but the controller" {
    local ping="ping -c1 -W1"
    run ! a separate n1,n2 n2,n3
    [[ $output == *"one side only"* ]]
    run ! a separate n1 n9
    a separate n1,n2 n3
    run ! a exec --node n1 -- $ping n3
    run ! a exec --node n3 -- $ping n2
    a exec --node n1 -- $ping n2
    a exec --node n3 -- $ping ctl
    a rejoin
    a exec --node n1 -- $ping n3
    a exec --node n3 -- $ping n2
}

@test "a cut-off node is marked down while its task goes on, and returns" {
    a exec --user alice -- sh -c 'srun -N1 -w n1 --no-kill sh -c "while :; do echo tick >>~/ticks; sleep 0.1; done" >/dev/null 2>&1 &
        until [ -s ~/ticks ]; do sleep 0.05; done'
    a cut-link n1
    eventually 30 state_is n1 'down*'
    local ticks="/run/dlrover-minicluster/$A/home/alice/ticks" old
    old=$(cat "$ticks" | wc -l)
    eventually 5 sh -c "[ \$(wc -l <$ticks) -gt $old ]"
    a heal-link n1
    eventually 30 state_is n1 idle
}

@test "frozen nodes stand still, jobs too, and go on when thawed" {
    local ticks="/run/dlrover-minicluster/$A/home/alice/steps"
    a exec --user alice -- sh -c 'srun -N1 -w n2 sh -c "for i in \$(seq 600); do echo \$i >>~/steps; sleep 0.05; done" >/dev/null 2>&1 &
        until [ -s ~/steps ]; do sleep 0.05; done'
    a freeze-node n2
    a status | grep -Eq '^n2 +[0-9.]+ +frozen '
    local old
    old=$(cat "$ticks" | wc -l)
    run -1 a exec --node n2 -- true
    [[ "$output" == *"n2 is frozen"* ]]
    run -1 a freeze-node n2
    run ! eventually 1 sh -c "[ \$(wc -l <$ticks) -gt $old ]"
    a thaw-node n2
    eventually 5 sh -c "[ \$(wc -l <$ticks) -gt $old ]"
    a exec -- scancel -u alice
    eventually 20 state_is n2 idle
}

@test "a frozen node can be powered off" {
    a freeze-node n3
    a kill-node n3
    a start-node n3
    state_is n3 idle
}

@test "slurmctld and slurmd stop and start; a running step does not notice" {
    "$minicluster" exec --name "$A" --user alice -- srun -N1 -w n1 sh -c 'echo >~/began; until [ -e ~/finish ]; do sleep 0.1; done' 3>&- &
    local step=$!
    eventually 10 test -e "/run/dlrover-minicluster/$A/home/alice/began"
    a stop-slurmctld
    run -1 a stop-slurmctld
    a status | grep -Eq '^n1 .*unknown'
    a stop-slurmd n1
    a start-slurmctld
    a start-slurmd n1
    a stop-slurmctld --abrupt
    a start-slurmctld
    a exec --user alice -- touch "/run/dlrover-minicluster/$A/home/alice/finish"
    wait "$step"
}

@test "wrong use is refused in plain words" {
    run -1 a start --no-dlrover
    [[ "$output" == *"already"* ]]
    run -1 a kill-node n9
    [[ "$output" == *"no node 'n9' (it has n1, n2, n3)"* ]]
    run -1 a kill-node ctl
    run -1 a start-node n1
    run -1 "$minicluster" status --name no-such-cluster
    [[ "$output" == *"no cluster 'no-such-cluster'"* ]]
    run -1 "$minicluster" start --name 'bad name' --no-dlrover
    run -2 "$minicluster" start --nodes 0
    run -1 "$minicluster" start --name "$A-x" --no-dlrover --conf nonsense
    run -1 env -u DLROVER_PREFIX "$minicluster" start --name "$A-x" --prefix /usr/share
    [[ "$output" == *"make install"* ]]
    run -1 setpriv --reuid 65534 --regid 65534 --clear-groups "$minicluster" list
    [[ "$output" == *"root is needed"* ]]
    [ ! -e "/run/dlrover-minicluster/$A-x" ]
}

@test "a start that fails, is interrupted or killed leaves nothing" {
    run -1 "$minicluster" start --name "$A-f" --nodes 1 --no-dlrover --conf SelectType=select/none-such 3>&-
    [[ "$output" == *"slurmctld"* ]]
    run ! sh -c "find /sys/fs/cgroup -path '*$A-f*' | grep . || pgrep -f 'reaper.p[y] $A-f ' || ls -d /run/dlrover-minicluster/$A-f"
    local signal
    for signal in TERM KILL; do
        "$minicluster" start --name "$A-f" --nodes 4 --no-dlrover 3>&- &
        local pid=$!
        eventually 5 pgrep -f "reaper.p[y] $A-f n1 "
        kill "-$signal" "$pid"
        run ! wait "$pid"
        eventually 5 sh -c "! pgrep -f 'reaper.p[y] $A-f '"
        "$minicluster" stop --name "$A-f"
    done
    # Interrupted as from a terminal, wherever it has come to. A quick machine may be done before: then it is up.
    local began=${EPOCHREALTIME/./} part interrupted=0
    "$minicluster" start --name "$A-f" --nodes 4 --no-dlrover 3>&-
    local took=$((${EPOCHREALTIME/./} - began))
    "$minicluster" stop --name "$A-f"
    for part in 5 10 20 30 50 70; do
        run timeout --signal=INT --preserve-status "$(printf '%d.%06d' $((took * part / 100000000)) $((took * part / 100 % 1000000)))" \
            "$minicluster" start --name "$A-f" --nodes 4 --no-dlrover 3>&-
        case $status in
            130) interrupted=$((interrupted + 1)) ;;
            0) "$minicluster" stop --name "$A-f" ;;
            *) echo "$output" && return 1 ;;
        esac
        run ! sh -c "find /sys/fs/cgroup -path '*$A-f*' | grep . || pgrep -f 'reaper.p[y] $A-f ' || ls -d /run/dlrover-minicluster/$A-f"
    done
    [ "$interrupted" -ge 3 ]
}

@test "keepers and daemons run on every host" {
    local prefix="$BATS_TEST_TMPDIR/prefix" name="$A-k"
    make_fake_installation "$prefix"
    DLROVER_PREFIX=$prefix "$minicluster" start --name "$name" --nodes 2 --conf SlurmdTimeout=4 3>&-
    run "$minicluster" status --name "$name"
    [ "$(grep -Ec '^(ctl|n[12]) .* [0-9]+  +[0-9]+  +[0-9]+ ' <<<"$output")" = 3 ]
    [ "$("$minicluster" exec --name "$name" --node n1 -- cat /run/dlrover/settings)" = "# minicluster: every setting has its default" ]
    [ "$("$minicluster" exec --name "$name" --user alice -- sh -c 'command -v dlrover')" = "$prefix/bin/dlrover" ]
    run "$minicluster" restart-daemon --name "$name" n2
    [[ "$output" =~ "n2: dlroverd "[0-9]+" killed, "[0-9]+" started" ]]
    [ "$(awk '{ print $3 != $5 }' <<<"$output")" = 1 ]
    "$minicluster" kill-node --name "$name" n1
    "$minicluster" start-node --name "$name" n1
    "$minicluster" logs --name "$name" n1 | grep -q 'fake daemon on n1'
    grep -q "optional $prefix/lib/slurm/dlrover.so" "/run/dlrover-minicluster/$name/etc/plugstack.conf"
    "$minicluster" stop --name "$name"
    # A daemon that dies at once makes the start fail with its words.
    printf '#!/bin/sh\necho no luck today >&2\nexit 1\n' >"$prefix/sbin/dlrover-keeper"
    run -1 "$minicluster" start --name "$name" --nodes 1 --prefix "$prefix" 3>&-
    [[ "$output" == *"no luck today"* ]]
    [ ! -e "/run/dlrover-minicluster/$name" ]
}

make_fake_installation() {
    mkdir -p "$1/sbin" "$1/bin" "$1/libexec/dlrover" "$1/lib/slurm"
    printf '#!/bin/sh\n' | tee "$1/bin/dlrover" >"$1/libexec/dlrover/dlrover-agent"
    cat >"$1/sbin/dlrover-keeper" <<'END'
#!/usr/bin/python3
import os, subprocess, sys
while True:
    subprocess.run([os.path.dirname(os.path.realpath(__file__)) + "/dlroverd"] + sys.argv[1:])
END
    cat >"$1/sbin/dlroverd" <<'END'
#!/usr/bin/python3
import os, shutil, signal, socket, sys
print("fake daemon on", socket.gethostname(), flush=True)
os.makedirs("/run/dlrover", exist_ok=True)
shutil.copy(sys.argv[sys.argv.index("--config") + 1], "/run/dlrover/settings")
path = "/run/dlrover/dlroverd.sock"
if os.path.exists(path):
    os.unlink(path)
socket.socket(socket.AF_UNIX).bind(path)
signal.pause()
END
    chmod -R a+rx "$1"
}

@test "accounting with --slurmdbd" {
    local name="$A-d"
    "$minicluster" start --name "$name" --nodes 1 --no-dlrover --slurmdbd 3>&-
    "$minicluster" exec --name "$name" --user bob -- srun true
    recorded() { "$minicluster" exec --name "$name" -- sacct -anXP -o user,account,state | grep -qx 'bob|users|COMPLETED'; }
    eventually 30 recorded
    "$minicluster" stop --name "$name"
}

# on_other_machine COMMANDS: start, freeze, thaw and stop a cluster where COMMANDS has changed /sys/fs/cgroup, which the
# test sees in a mount namespace of its own.
on_other_machine() {
    export minicluster name="$A-m" change="$1"
    unshare --mount bash -euc '
        awk "\$2 ~ \"^/sys/fs/cgroup\" { print \$2 }" /proc/self/mounts | tac | xargs -n1 umount -l
        eval "$change"
        run() { local command=$1; shift; "$minicluster" "$command" --name "$name" "$@"; }
        run start --nodes 2 --no-dlrover
        trap "run stop" EXIT
        run exec --user alice -- srun -N2 hostname
        run exec -- scontrol show config | grep -q "ProctrackType *= proctrack/linuxproc"
        run freeze-node n1
        run status | grep -E "^n1 .* frozen "
        if run exec --node n1 -- true; then exit 1; fi
        run thaw-node n1
        run exec --user alice -- srun -N2 hostname
        run freeze-node n2
        run kill-node n2
        run start-node n2
        run freeze-node n2
    ' 3>&-
    [ ! -e "/run/dlrover-minicluster/$A-m" ]
}

@test "a machine with cgroup version 2 alone" {
    on_other_machine 'mount -t cgroup2 none /sys/fs/cgroup'
}

@test "a machine without cgroups" {
    on_other_machine true
}

@test "a command on a node that dies ends, and --share keeps a folder visible" {
    local name="$A-s" status=0
    touch "$BATS_TEST_TMPDIR/here"
    "$minicluster" start --name "$name" --nodes 1 --no-dlrover --share "$BATS_TEST_TMPDIR" 3>&-
    "$minicluster" exec --name "$name" --node n1 -- ls "$BATS_TEST_TMPDIR/here"
    "$minicluster" exec --name "$name" --node n1 -- sh -c 'echo >/run/running; sleep 300' 3>&- &
    local pid=$!
    eventually 10 "$minicluster" exec --name "$name" --node n1 -- test -e /run/running
    "$minicluster" kill-node --name "$name" n1
    wait "$pid" || status=$?
    [ "$status" = 137 ]
    "$minicluster" stop --name "$name"
}

@test "stop leaves no process, mount, namespace, cgroup or file, and may be repeated" {
    local pids namespaces
    pids=$(pgrep -f "mcluster/reaper.p[y] ($A|$B) ")
    [ "$(wc -l <<<"$pids")" = 9 ]
    namespaces=$(for pid in $pids; do readlink "/proc/$pid"/ns/{mnt,net,pid,ipc,uts,cgroup}; done | sort -u)
    [ "$(wc -l <<<"$namespaces")" = 54 ]
    a exec --user alice -- sh -c 'srun -N3 sleep 600 >/dev/null 2>&1 & sleep 600 >/dev/null 2>&1 &'
    a kill-node n1
    a cut-link n2
    a freeze-node n3
    a stop
    a stop
    b stop
    run traces
    diff "$TRACES_BEFORE" <(echo -n "${output:+$output
}")
    local pid namespace
    for pid in /proc/[0-9]*; do
        for namespace in $(readlink "$pid"/ns/{mnt,net,pid,ipc,uts,cgroup} 2>/dev/null || true); do
            [[ $'\n'$namespaces$'\n' != *$'\n'$namespace$'\n'* ]] ||
                { echo "$namespace is still held by ${pid##*/}: $(tr '\0' ' ' <"$pid/cmdline")" >&2; return 1; }
        done
    done
    [ ! -e "$B_DIR" ]
}
