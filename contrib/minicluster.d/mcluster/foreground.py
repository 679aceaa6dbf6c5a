# SPDX-License-Identifier: Apache-2.0
"""`exec`: one command on a host, with the caller's terminal, signals and exit code."""

import os
import pwd
import signal

from mcluster import Failure, environ, faults, kernel

FORWARDED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
             signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH}
SI_KERNEL = 0x80


def run(cluster, host, user, argv):
    """Run argv on the host as the user; the exit code, 128 + signal if one killed it."""
    if faults.is_frozen(cluster, host):
        raise Failure(f"{host} is frozen (minicluster thaw-node --name {cluster.name} {host})")
    first = cluster.running(host)
    folder = os.getcwd()
    procs = cluster.cgroups.open_procs(host)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    kernel.enter(first)
    child = os.fork()
    if child == 0:
        try:
            become_command(cluster, user, folder, procs, argv)
        except OSError as error:
            complain(str(error), 126)
        finally:
            os._exit(127)
    return wait_and_forward(child)


def become_command(cluster, user, folder, procs, argv):
    for fd in procs:
        os.write(fd, b"0")
        os.close(fd)
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        known = ", ".join(["root", *cluster.users])
        return complain(f"cluster '{cluster.name}' has no user '{user}' (it has {known})", 2)
    become_user(entry)
    env = environ.of_user(cluster, user, entry.pw_dir)
    env["PWD"] = change_folder(folder, entry.pw_dir)
    # As ssh does: the command hears of it when the caller is killed.
    kernel.die_with_parent(signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    # Nor does it ignore what the caller does (nohup; a shell's background).
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError:
        return complain(f"{argv[0]}: command not found", 127)
    except OSError as error:
        return complain(f"{argv[0]}: {error.strerror}", 126)


def complain(text, code):
    os.write(2, f"minicluster: {text}\n".encode())
    os._exit(code)


def become_user(entry):
    if entry.pw_uid != 0:
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)


def change_folder(folder, home):
    """Stay where the caller is if that exists here and is open to the user; else go home."""
    for place in (folder, home, "/"):
        try:
            os.chdir(place)
            return place
        except OSError:
            continue
    return "/"


def wait_and_forward(child):
    """Pass on the signals that processes send to us; those of the terminal reach the child directly."""
    while True:
        info = signal.sigwaitinfo(FORWARDED | {signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD:
            if info.si_code != SI_KERNEL:
                os.kill(child, info.si_signo)
            continue
        pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            continue
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        elif os.WIFSIGNALED(status):
            return 128 + os.WTERMSIG(status)
        else:
            return os.WEXITSTATUS(status)
