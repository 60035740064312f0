"""The rivals: how each is started, measured and stopped.

Each workload gets servers and data of its own, so that none inherits the memory or the tables of another."""

import contextlib
import json
import os
import pathlib
import pwd
import re
import signal
import subprocess
import urllib.request

import install
import processes

HERE = pathlib.Path(__file__).resolve().parent
# A rival that retries for ever what cannot succeed would keep its caller waiting.
LIMIT_SECONDS = 300


class Restate:
    """A Restate server and a service in Node.js, called over HTTP through the server's ingress."""

    name = "Restate"
    durability = "every write is synced to the disk (default)"

    def __init__(self, options, fsync):
        self.fsync = fsync
        self.modules = install.restate()
        (self.server,) = self.modules.glob("@restatedev/restate-server-*/bin/restate-server")
        self.node = self.modules / install.NODE / "bin/node"
        sdk, node = install.NPM["@restatedev/restate-sdk"], output_of(self.node, "--version").lstrip("v")
        self.version = f"{install.NPM['@restatedev/restate-server']}, SDK {sdk}, Node.js {node}"

    def measure(self, workload, callers, warm_up, seconds, folder):
        node, ingress, admin, service = processes.free_ports(4)
        settings = {
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_IP": "127.0.0.1",
            "RESTATE_BIND_PORT": str(node),
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_DISABLE_TELEMETRY": "true",
        }
        modules = {"NODE_PATH": str(self.modules)}
        if not self.fsync:
            settings["RESTATE_LOG_SERVER__ROCKSDB_DISABLE_WAL_FSYNC"] = "true"
        with contextlib.ExitStack() as running:
            server = running.enter_context(
                processes.Process(
                    "restate-server",
                    [self.server, "--no-logo", f"--base-dir={folder / 'restate'}"],
                    folder / "restate-server.log",
                    env=settings,
                )
            )
            worker = running.enter_context(
                processes.Process(
                    "the Restate service",
                    [self.node, HERE / "restate/service.cjs", service],
                    folder / "restate-service.log",
                    # Without a line of log for each run.
                    env={**modules, "RESTATE_LOGGING": "WARN", "NODE_ENV": "production"},
                )
            )
            server.wait_for(lambda: processes.answers(f"http://127.0.0.1:{admin}/health"))
            server.wait_for(lambda: processes.answers(f"http://127.0.0.1:{ingress}/restate/health"))
            worker.wait_for(lambda: register(admin, service))
            memory = running.enter_context(processes.Memory([server.pid, worker.pid]))
            handler = {"sequence": "sequence", "fan-out": "fanOut", "empty": "empty"}[workload]
            command = [self.node, HERE / "restate/client.cjs", ingress, handler, callers, warm_up, seconds]
            return result_of(command, modules, worker.log), memory


def register(admin, service):
    """Makes the service known to the server, which asks it for its handlers."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{admin}/deployments",
        data=json.dumps({"uri": f"http://127.0.0.1:{service}"}).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.status in (200, 201)


class Dbos:
    """DBOS in a Python process, which also calls it, and a PostgreSQL."""

    name = "DBOS"
    durability = "every commit is synced to the disk (default)"

    def __init__(self, options, fsync):
        self.fsync = fsync
        self.python = install.dbos()
        self.postgres = install.postgres(options.postgres)
        self.user = unprivileged()
        try:
            server = output_of(self.postgres / "postgres", "--version", user=self.user, cwd="/")
        except OSError as error:
            # As root we run it as another user, who cannot look into root's cache.
            raise SystemExit(f"{self.user or 'this user'} cannot run PostgreSQL: {error}") from None
        server = re.search(r"\d+(\.\d+)+", server)[0]
        python = output_of(self.python, "--version").split()[1]
        self.version = f"{install.PYPI['dbos']}, PostgreSQL {server}, Python {python}"

    def measure(self, workload, callers, warm_up, seconds, folder):
        (port,) = processes.free_ports(1)
        data = folder / "postgres"
        data.mkdir()
        if self.user:
            os.chown(data, pwd.getpwnam(self.user).pw_uid, -1)
        subprocess.run(
            [self.postgres / "initdb", "-D", data, *"-U postgres -A trust -E UTF8 --locale=C".split()],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self.user,
            cwd=data,
        )
        settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": ""}
        if not self.fsync:
            settings["fsync"] = "off"
        command = [self.postgres / "postgres", "-D", data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        url = f"postgresql://postgres@127.0.0.1:{port}/bench"
        with contextlib.ExitStack() as running:
            # SIGINT is its fast shutdown, which does not wait for connections.
            log = folder / "postgres.log"
            server = processes.Process("postgres", command, log, stop=signal.SIGINT, user=self.user)
            running.enter_context(server)
            server.wait_for(lambda: b"ready to accept connections" in log.read_bytes())
            memory = processes.Memory([server.pid])
            running.enter_context(memory)
            program = [self.python, HERE / "dbos/workflows.py", url, workload, callers, warm_up, seconds]
            return result_of(program, {"PYTHONDONTWRITEBYTECODE": "1"}, log, memory), memory


def unprivileged():
    """Who runs PostgreSQL when we are root, as whom it does not run."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def output_of(*command, **options):
    command = [str(part) for part in command]
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout.strip()


def result_of(command, env, log, memory=None):
    """The last line that a client prints. With `memory`, what the client holds counts too. `log` is the file
    to look into when it fails."""
    client = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        if memory:
            memory.pids.append(client.pid)
        out, err = client.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{command[1]} did not end; {log.name} says:\n{processes.tail(log)}") from None
    finally:
        if client.poll() is None:
            client.kill()
            client.wait()
    if client.returncode != 0:
        raise SystemExit(f"{command[1]} failed:\n{err[-4000:]}\n{log.name} says:\n{processes.tail(log)}")
    return json.loads(out.splitlines()[-1])
