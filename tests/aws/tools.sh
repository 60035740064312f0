# Sourced by tests/aws/run and .ci/run: the tools that neither Rust nor the system brings, each in a virtual
# environment of its own under .tools, with every version pinned. They are apart because they pin versions of
# the same libraries that exclude each other.
#
# Expects $root, the top of the repository.

tools="$root/.tools"

# venv NAME: makes .tools/NAME from tests/aws/requirements/NAME.txt, unless that was done before.
venv() {
    local name="$1" wanted="$root/tests/aws/requirements/$1.txt" dir="$tools/$1"
    mkdir -p "$tools"
    (
        flock 9
        if cmp -s "$wanted" "$dir/installed.txt"; then
            exit 0
        fi
        echo "installing $name into .tools/$name"
        rm -rf "$dir"
        "${PYTHON:-python3}" -m venv "$dir"
        "$dir/bin/pip" install --quiet --disable-pip-version-check --no-input --requirement "$wanted"
        cp "$wanted" "$dir/installed.txt"
    ) 9>"$tools/$name.lock" </dev/null
}

export SAM_CLI_TELEMETRY=0
