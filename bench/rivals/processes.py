"""Processes that a measurement starts: their ports, their logs, their memory, and their end."""

import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request


def free_ports(count):
    """Free ports on loopback, no two the same."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


class Process:
    """A server that runs until the end of the `with` block. Its output goes to a file in the data folder."""

    def __init__(self, name, command, log, stop=signal.SIGTERM, user=None, env=None):
        self.name, self.log, self.stop = name, pathlib.Path(log), stop
        with open(log, "wb") as out:
            # In a session of its own, so that Ctrl-C reaches it through us and in order.
            self.popen = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                user=user,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.pid = self.popen.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.popen.poll() is None:
            self.popen.send_signal(self.stop)
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()

    def wait_for(self, ready, seconds=60):
        """Until `ready()`, which may raise what a server that is not up yet makes it raise."""
        until = time.monotonic() + seconds
        while True:
            try:
                if ready():
                    return
            except (OSError, urllib.error.URLError):
                pass
            if self.popen.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{self.name} did not start:\n{tail(self.log)}")
            time.sleep(0.05)


def tail(log):
    return log.read_text(errors="replace")[-4000:]


def answers(url):
    with urllib.request.urlopen(url, timeout=2) as response:
        return response.status == 200


class Memory:
    """The largest sum, so far, of what these processes and their children hold in memory.

    A page that several of them share counts once (it is divided among them, PSS): PostgreSQL's processes all
    map the same buffers, and a sum of their RSS would count these once for each connection."""

    def __init__(self, pids, every_seconds=0.5):
        self.pids, self.every_seconds = list(pids), every_seconds
        self.peak_mb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _watch(self):
        while not self._over.is_set():
            kilobytes = sum(proportional_kb(pid) for pid in with_children(self.pids))
            self.peak_mb = max(self.peak_mb, kilobytes / 1024)
            self._over.wait(self.every_seconds)


def with_children(pids):
    """These processes and everything below them."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            # The name, in brackets, may hold blanks and brackets.
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry))
    found, open_ones = set(), list(pids)
    while open_ones:
        pid = open_ones.pop()
        if pid not in found:
            found.add(pid)
            open_ones += children.get(pid, [])
    return found


def proportional_kb(pid):
    try:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        # It has ended.
        pass
    return 0
