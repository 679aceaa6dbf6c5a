#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The SPANK module in a real Slurm: srun, sbatch, salloc, slurmstepd. A stand-in for the agent tells what it got; there
# is no daemon. Needs root, a built tree (DLROVER_BUILD) and, for the last tests, an installation (DLROVER_PREFIX).

bats_require_minimum_version 1.5.0
load ../eventually

top="$BATS_TEST_DIRNAME/../.."
minicluster="$top/contrib/minicluster"
build=${DLROVER_BUILD:-$top/build}

setup_file() {
    [ "$(id -u)" = 0 ] || { echo "root is needed" >&2; return 1; }
    make -C "$build" dlrover.la tests/spank/dlrover_faulty.la tests/spank/dlrover_foreign.la tests/spank/echo_agent tests/spank/echo_daemon >&2
    export CLUSTER="spank-$$"
    "$minicluster" start --name "$CLUSTER" --nodes 3 --no-dlrover --conf PrologFlags=Alloc,Contain --conf MaxTime=10 3>&-
    FOLDER=$("$minicluster" status --name "$CLUSTER" --json | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["folder"])')
    export FOLDER WORK="$FOLDER/work"
    cp "$build/.libs/dlrover.so" "$build/tests/spank/.libs/dlrover_faulty.so" "$build/tests/spank/.libs/dlrover_foreign.so" \
        "$build/tests/spank/echo_agent" "$build/tests/spank/echo_daemon" "$WORK/"
}

teardown_file() { [ -z "${CLUSTER:-}" ] || "$minicluster" stop --name "$CLUSTER"; }

setup() { plugstack "optional $WORK/dlrover.so agent=$WORK/echo_agent socket=$WORK/no-daemon"; }

plugstack() { printf '%s\n' "$@" >"$FOLDER/etc/plugstack.conf"; }

# As alice, in the shared folder.
as_alice() { (cd "$WORK" && "$minicluster" exec --name "$CLUSTER" --user alice -- "$@" 3>&-); }
as_root() { "$minicluster" exec --name "$CLUSTER" -- "$@" 3>&-; }

# "!" does not fail a test by itself.
absent() { if grep -Eq -- "$1" <<<"$2"; then return 1; fi; }

# Writes a job script and runs it to its end; its output is in $output.
run_batch() {
    cat >"$WORK/job.sh"
    rm -f "$WORK/job.out"
    run -0 as_alice sbatch -W -o "$WORK/job.out" "$@" "$WORK/job.sh"
    output=$(cat "$WORK/job.out")
    echo "$output"
}

jobs_ever() { as_root scontrol show config | awk '$1 == "NEXT_JOB_ID" { print $3 }'; }

# refused PART COMMAND...: fails, says PART, and no job came of it.
refused() {
    local part=$1 before
    shift
    before=$(jobs_ever)
    run ! as_alice "$@"
    echo "$output"
    [[ $output == *"$part"* ]]
    [ "$(jobs_ever)" = "$before" ]
}

no_node_is_drained() {
    local states
    states=$(as_root sinfo -h -N -o '%N %T %E')
    echo "$states"
    absent 'drain|down|fail' "$states"
}

# plain_step: another user's ordinary step on every node is unharmed.
plain_step() {
    run -0 as_alice srun -N3 --ntasks-per-node=2 sh -c 'echo "ran ${DLROVER_JOB_ID:-free}"'
    echo "$output"
    [ "$(grep -c '^ran free$' <<<"$output")" = 6 ]
}

@test "the options are listed without any daemon of Slurm" {
    mkdir "$BATS_TEST_TMPDIR/etc"
    echo "optional $build/.libs/dlrover.so" >"$BATS_TEST_TMPDIR/etc/plugstack.conf"
    printf '%s\n' ClusterName=none SlurmctldHost=localhost "PlugStackConfig=$BATS_TEST_TMPDIR/etc/plugstack.conf" \
        "NodeName=localhost" "PartitionName=p Nodes=localhost" >"$BATS_TEST_TMPDIR/etc/slurm.conf"
    for command in srun sbatch salloc; do
        run -0 env SLURM_CONF="$BATS_TEST_TMPDIR/etc/slurm.conf" "$command" --help
        for option in elastic max-restarts spares node-unit name ckpt-dir ckpt-every ckpt-keep redundancy optional companion join; do
            [[ $output == *"--dlrover-$option"* ]]
        done
    done
}

@test "a step without the option is untouched" {
    plain_step
    run -0 as_alice srun -N2 sh -c 'env'
    absent '^(SLURM_DLROVER|DLROVER_(JOB|STEP|AGENT|REGISTER|SOCKET|OPTIONAL|LOCAL|TASKS))' "$output"
    [[ $output != *agent:* ]]
}

@test "each task of an elastic step starts with the agent" {
    run -0 as_alice srun --dlrover-elastic=1:2 -N2 --ntasks-per-node=2 sh -c 'echo "$SLURM_PROCID ran $1"' x word
    echo "$output"
    [ "$(grep -c '^agent: ' <<<"$output")" = 4 ]
    [ "$(grep -c 'local=1 here=2 optional=0' <<<"$output")" = 2 ]
    for rank in 0 1 2 3; do grep -qx "$rank ran word" <<<"$output"; done
    [[ $output == *"error=node n1: no daemon at $WORK/no-daemon"* ]]
    [[ $output == *"error=node n2: no daemon at"* ]]
}

# start_daemon NODE: its lines go to $WORK/NODE.said until its stdin, descriptor 8 or 9, is closed.
start_daemon() {
    rm -f "$WORK/$1.said" "$BATS_TEST_TMPDIR/$1.fifo"
    mkfifo "$BATS_TEST_TMPDIR/$1.fifo"
    "$minicluster" exec --name "$CLUSTER" --node "$1" -- "$WORK/echo_daemon" /run/test.sock <"$BATS_TEST_TMPDIR/$1.fifo" \
        >"$WORK/$1.said" 3>&- &
}
said() { grep -q "$2" "$WORK/$1.said"; }

@test "root registers the step at each node with Slurm's facts, and ends it" {
    plugstack "optional $WORK/dlrover.so agent=$WORK/echo_agent socket=/run/test.sock"
    start_daemon n1
    exec 8>"$BATS_TEST_TMPDIR/n1.fifo"
    start_daemon n2
    exec 9>"$BATS_TEST_TMPDIR/n2.fifo"
    eventually 10 said n1 listening
    eventually 10 said n2 listening
    run -0 as_alice srun -N2 -w n1,n2 -n3 --distribution=block --dlrover-elastic=1:2 --dlrover-name=run-1 /bin/echo ran "a b"
    echo "$output"
    [ "$(grep -c '^agent: .*error=-$' <<<"$output")" = 3 ]
    printf '%s\n' '#!/bin/sh' 'srun -n2 /bin/true' >"$WORK/array.sh"
    run -0 as_alice sbatch -W --array=7 -N2 -w n1,n2 -D /tmp -o /dev/null --dlrover-elastic "$WORK/array.sh"
    for node in n1 n2; do eventually 5 said "$node" '^end job=.* step=0'; done
    exec 8>&- 9>&-
    wait
    cat "$WORK/n1.said" "$WORK/n2.said"
    facts="step=0 uid=2001 gid=[0-9]* restarts=0 array=0/0 nodes=n1,n2 index=INDEX tasks=2,1 batch=n1 size=1:2+0 name=run-1 cwd=$WORK argv=/bin/echo ran a b"
    said n1 "register cluster=$CLUSTER job=[0-9]* ${facts/INDEX/0}"
    said n2 "register cluster=$CLUSTER job=[0-9]* ${facts/INDEX/1}"
    said n2 "restarts=0 array=1/7 nodes=n1,n2 index=1 tasks=1,1 batch=n1 size=2:2+0 name= cwd=/tmp argv=/bin/true"
    [ "$(grep -c ^end "$WORK/n1.said")" = 2 ]
}

@test "a program that srun broadcasts is found behind the agent" {
    cp /bin/echo "$WORK/my-echo"
    run -0 as_alice srun --bcast=/tmp/ --dlrover-elastic -N2 "$WORK/my-echo" ran
    echo "$output"
    [ "$(grep -c '^ran$' <<<"$output")" = 2 ]
}

@test "--export=NONE lets the request pass" {
    run -0 as_alice srun --export=NONE --dlrover-elastic -N1 /bin/true
    [ "$(grep -c '^agent: ' <<<"$output")" = 1 ]
}

@test "wrong values are refused before the job is queued" {
    echo '#!/bin/sh' >"$WORK/empty.sh"
    for command in "srun -N2 /bin/true" "sbatch -N2 $WORK/empty.sh" "salloc -N2 /bin/true"; do
        read -ra words <<<"$command"
        local tool=("${words[0]}") rest=("${words[@]:1}")
        refused "give MIN or MIN:MAX" "${tool[@]}" --dlrover-elastic=0 "${rest[@]}"
        refused "MAX must not be smaller" "${tool[@]}" --dlrover-elastic=3:2 "${rest[@]}"
        refused "needs 3 nodes (MAX, -N3); the step has 2" "${tool[@]}" --dlrover-elastic=2:3 "${rest[@]}"
        refused "needs 3 nodes (MAX + spares, -N3)" "${tool[@]}" --dlrover-elastic=1:2 --dlrover-spares=1 "${rest[@]}"
        refused "from 0 to 10000" "${tool[@]}" --dlrover-elastic --dlrover-max-restarts=x "${rest[@]}"
        refused "absolute path" "${tool[@]}" --dlrover-elastic --dlrover-ckpt-dir=here "${rest[@]}"
        refused "a number of complete checkpoints" "${tool[@]}" --dlrover-elastic --dlrover-ckpt-dir=/x --dlrover-ckpt-every=often "${rest[@]}"
        refused "N or N:STEPS" "${tool[@]}" --dlrover-elastic --dlrover-ckpt-dir=/x --dlrover-ckpt-keep=0 "${rest[@]}"
        refused "give --dlrover-ckpt-dir" "${tool[@]}" --dlrover-elastic --dlrover-ckpt-every=5 "${rest[@]}"
        refused "yes or no" "${tool[@]}" --dlrover-elastic --dlrover-companion=perhaps "${rest[@]}"
        refused "JOB.STEP" "${tool[@]}" --dlrover-join=57 "${rest[@]}"
        refused "rs:K+M (K from 2 to 32, M from 1 to 8)" "${tool[@]}" --dlrover-elastic --dlrover-redundancy=rs:1+2 "${rest[@]}"
        refused "no effect without --dlrover-elastic" "${tool[@]}" --dlrover-name=x "${rest[@]}"
    done
    refused "give srun -N2" srun --dlrover-elastic=1:2 /bin/true
    refused "can not be used with --pty" srun --dlrover-elastic -N2 --pty /bin/true
    refused "not a multiple of" srun --dlrover-elastic=1:2 --dlrover-node-unit=2 -N2 /bin/true
}

@test "a #SBATCH line with a wrong value is refused" {
    printf '%s\n' '#!/bin/sh' '#SBATCH -N2' '#SBATCH --dlrover-elastic=1:3' >"$WORK/wrong.sh"
    refused "needs 3 nodes" sbatch "$WORK/wrong.sh"
}

@test "#SBATCH reaches the steps that fit, and no others" {
    run_batch <<'SCRIPT'
#!/bin/bash
#SBATCH -N2
#SBATCH --dlrover-elastic=1:2
echo "batch ${DLROVER_JOB_ID:-free}"
srun /bin/echo step-fits
srun -N1 -n1 /bin/echo step-small
srun --dlrover-elastic=off /bin/echo step-off
srun -N1 -n1 --dlrover-elastic=1:2 /bin/echo step-wrong || echo refused
srun -N1 -n1 --dlrover-elastic=1:1 /bin/echo step-own
SCRIPT
    grep -qx "batch free" <<<"$output"
    [ "$(grep -c '^agent: .*step=0 ' <<<"$output")" = 2 ]
    [ "$(grep -c '^agent: .*step=[12] ' <<<"$output")" = 0 ]
    [ "$(grep -c '^step-small' <<<"$output")" = 1 ]
    [ "$(grep -c '^step-off' <<<"$output")" = 2 ]
    grep -qx refused <<<"$output"
    absent '^step-wrong' "$output"
    grep -q 'needs 2 nodes (MAX, -N2); the step has 1' <<<"$output"
    [ "$(grep -c '^step-own' <<<"$output")" = 1 ]
    [ "$(grep -c '^agent: ' <<<"$output")" = 3 ]
}

@test "the option without a value travels from #SBATCH" {
    run_batch <<'SCRIPT'
#!/bin/bash
#SBATCH -N2
#SBATCH --dlrover-elastic
srun /bin/true
srun -N1 -n1 /bin/true
SCRIPT
    [ "$(grep -c '^agent: ' <<<"$output")" = 3 ]
}

@test "salloc hands the option to its steps" {
    run -0 as_alice salloc -N2 --dlrover-elastic=2:2 --dlrover-optional srun /bin/true
    echo "$output"
    [ "$(grep -c '^agent: .*optional=1' <<<"$output")" = 2 ]
}

@test "defaults of the user's environment" {
    run -0 env DLROVER_ELASTIC=1:2 DLROVER_MAX_RESTARTS=5 "$minicluster" exec --name "$CLUSTER" --user alice -- srun -N2 /bin/true
    [ "$(grep -c '^agent: ' <<<"$output")" = 2 ]
    run -0 env DLROVER_ELASTIC=1:2 "$minicluster" exec --name "$CLUSTER" --user alice -- srun -N1 /bin/true
    [[ $output != *agent:* ]]
    run -0 env DLROVER_ELASTIC=1:2 "$minicluster" exec --name "$CLUSTER" --user alice -- srun -N2 --dlrover-elastic=off /bin/true
    [[ $output != *agent:* ]]
    run ! env DLROVER_ELASTIC=some "$minicluster" exec --name "$CLUSTER" --user alice -- srun -N1 /bin/true
    [[ $output == *"from the variable DLROVER_ELASTIC"* ]]
}

# nodes_left JOB COUNT
nodes_left() { [ "$(as_root squeue -h -t R -j "$1" -o %D)" = "$2" ]; }

# Slurm takes the node back by itself when it registers, or when told so.
node_returns() { as_root scontrol update NodeName=n2 State=RESUME || no_node_is_drained; }

# start_waiting OPTION...: a step on n1 and n2 that runs until $WORK/go is there; sets job and srun_pid.
start_waiting() {
    rm -f "$WORK"/go "$WORK"/up.*
    as_alice srun -N2 -w n1,n2 "$@" sh -c 'touch up.$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done; echo survived' \
        >"$WORK/waiting.out" 2>&1 &
    srun_pid=$!
    eventually 10 test -e "$WORK/up.0" -a -e "$WORK/up.1"
    job=$(as_root squeue -h -t R -o %i)
}

@test "an elastic job outlives a node that Slurm declares down" {
    start_waiting --dlrover-elastic=1:2
    as_root scontrol update NodeName=n2 State=DOWN Reason=test
    eventually 10 nodes_left "$job" 1
    touch "$WORK/go"
    wait "$srun_pid" || true
    eventually 10 node_returns
    cat "$WORK/waiting.out"
    [ "$(grep -c '^survived' "$WORK/waiting.out")" = 1 ]
}

@test "an ordinary job does not (or the test above would show nothing)" {
    start_waiting
    as_root scontrol update NodeName=n2 State=DOWN Reason=test
    wait "$srun_pid" || true
    eventually 10 node_returns
    absent '^survived' "$(cat "$WORK/waiting.out")"
}

@test "sbatch passes no-kill to the job" {
    printf '%s\n' '#!/bin/sh' 'touch up.batch; until [ -e go ]; do sleep 0.1; done' >"$WORK/wait.sh"
    rm -f "$WORK"/go "$WORK"/up.*
    run -0 as_alice sbatch --parsable -N2 -w n1,n2 --dlrover-elastic=1:2 -o /dev/null "$WORK/wait.sh"
    eventually 10 test -e "$WORK/up.batch"
    as_root scontrol update NodeName=n2 State=DOWN Reason=test
    eventually 10 nodes_left "$output" 1
    touch "$WORK/go"
    eventually 10 node_returns
}

@test "the user's --no-kill=off stands and is commented" {
    run -0 as_alice srun --dlrover-elastic -N1 --no-kill=off /bin/true
    [[ $output == *'--no-kill is "unset": a lost node will end the whole job'* ]]
}

@test "a flag that is off by default stays off in the job" {
    run -0 env DLROVER_OPTIONAL=0 "$minicluster" exec --name "$CLUSTER" --user alice -- salloc -N1 --dlrover-elastic srun /bin/true
    [[ $output == *"optional=0"* ]]
    run -0 env DLROVER_OPTIONAL=yes "$minicluster" exec --name "$CLUSTER" --user alice -- salloc -N1 --dlrover-elastic srun /bin/true
    [[ $output == *"optional=1"* ]]
}

@test "extern and batch steps see nothing of the module" {
    : >"$FOLDER/log/slurmd-n1.log"
    run_batch -w n1 -N1 --dlrover-elastic <<'SCRIPT'
#!/bin/bash
echo batch "$DLROVER_JOB_ID"
SCRIPT
    grep -qx "batch " <<<"$output"
    absent 'dlrover: ' "$(cat "$FOLDER/log/slurmd-n1.log")"
}

@test "unknown words in plugstack.conf are reported and ignored" {
    plugstack "optional $WORK/dlrover.so agent=$WORK/echo_agent colour=blue"
    plain_step
    [[ $output == *'"colour=blue" in plugstack.conf is ignored'* ]]
}

@test "no fault of any hook drains a node or harms a step" {
    for hook in init init_post_opt task_init exit local_user_init; do
        for kind in throw throw-int error hang; do
            plugstack "optional $WORK/dlrover_faulty.so agent=$WORK/echo_agent socket=$WORK/no-daemon timeout_ms=500 fault=$hook:$kind"
            plain_step
            run as_alice srun --dlrover-elastic -N3 /bin/echo ran
            echo "$hook:$kind: $output"
            if [[ $hook:$kind == init:[te]* ]]; then  # srun then does not know the option
                [[ $output == *"--dlrover-elastic"* ]]
            else
                [ "$(grep -c '^ran$' <<<"$output")" = 3 ]
            fi
        done
    done
    no_node_is_drained
}

@test "no fault in sbatch keeps a job from running" {
    for hook in init init_post_opt exit; do
        plugstack "optional $WORK/dlrover_faulty.so agent=$WORK/echo_agent fault=$hook:throw"
        run_batch -N1 <<'SCRIPT'
#!/bin/sh
echo ran
SCRIPT
        [[ $output == *ran* ]]
    done
    no_node_is_drained
}

@test "a module that is missing harms nobody" {
    plugstack "optional $WORK/gone.so"
    plain_step
    no_node_is_drained
}

@test "a module of another Slurm version harms nobody" {
    plugstack "optional $WORK/dlrover_foreign.so"
    plain_step
    no_node_is_drained
    run ! as_alice srun --dlrover-elastic -N1 /bin/true
    [[ $output == *dlrover-elastic* ]]
}

@test "a module on the login host alone: the step runs unprotected" {
    mv "$WORK/dlrover.so" "$WORK/moved.so"
    plugstack "optional $WORK/dlrover.so agent=$WORK/echo_agent"
    as_root mkdir -p /run/login
    as_root cp "$WORK/moved.so" /run/login/dlrover.so
    plugstack "optional /run/login/dlrover.so agent=$WORK/echo_agent"
    run as_alice srun --dlrover-elastic -N2 /bin/echo ran
    mv "$WORK/moved.so" "$WORK/dlrover.so"
    echo "$output"
    [ "$(grep -c '^ran$' <<<"$output")" = 2 ]
    no_node_is_drained
}

# seconds_of COMMAND...: sets took, in ms.
seconds_of() {
    local start
    start=$(date +%s%N)
    run "$@"
    took=$((($(date +%s%N) - start) / 1000000))
}

@test "no daemon: the task fails within 2 s naming the node and what to do" {
    [ -x "${DLROVER_PREFIX:?}/libexec/dlrover/dlrover-agent" ]
    cp "$DLROVER_PREFIX/libexec/dlrover/dlrover-agent" "$WORK/agent"
    plugstack "optional $WORK/dlrover.so agent=$WORK/agent socket=$WORK/no-daemon"
    seconds_of as_alice srun --dlrover-elastic -N1 -w n2 /bin/echo ran
    echo "$took ms: $output"
    [ "$status" -ne 0 ]
    [ "$took" -lt $((2000 * ${DLROVER_TEST_PATIENCE:-1})) ]
    [[ $output != *ran* ]]
    [[ $output == *"node n2: no daemon"* ]]
    [[ $output == *"start dlroverd"* ]]
    no_node_is_drained
}

@test "no daemon, --dlrover-optional: the task runs" {
    cp "${DLROVER_PREFIX:?}/libexec/dlrover/dlrover-agent" "$WORK/agent"
    plugstack "optional $WORK/dlrover.so agent=$WORK/agent socket=$WORK/no-daemon"
    run -0 as_alice srun --dlrover-elastic --dlrover-optional -N2 /bin/echo ran
    echo "$output"
    [ "$(grep -c '^ran$' <<<"$output")" = 2 ]
}
