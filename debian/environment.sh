#!/usr/bin/env bash
# Builds the virtual environment /opt/podlane, the man pages and the completion into a folder: environment.sh FOLDER.
# A virtual environment has its path in its commands. So it is made at /opt/podlane, in a mount namespace in which a
# folder for the build is there, and the /opt of this machine stays as it is.
set -euo pipefail

folder=$(realpath "$1")
source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_COLOR=1 PIP_ROOT_USER_ACTION=ignore
unset PYTHONPATH PYTHONDONTWRITEBYTECODE

# The system's Python, as it is on the hosts of the package, whatever else is on PATH.
/usr/bin/python3 -m venv "$work/tools"
"$work/tools/bin/pip" wheel -q -w "$work/wheels" "$source"
"$work/tools/bin/pip" install -q --target "$work/man" "$(sed -nE 's/^ *"(argparse-manpage[^"]*)",.*/\1/p' "$source/pyproject.toml")"

mkdir "$work/environment"
export source work
# The second installation takes nothing but these wheels.
as=(); [[ $(id -u) == 0 ]] || as=(--map-root-user)
unshare --mount --propagation private "${as[@]}" bash -euo pipefail <<'INSIDE'
cd "$source"
unset PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL
export PIP_CONFIG_FILE=/dev/null
mount -t tmpfs -o mode=0755 tmpfs /opt
mkdir /opt/podlane
mount --bind "$work/environment" /opt/podlane
/usr/bin/python3 -m venv /opt/podlane
/opt/podlane/bin/pip install -q --no-compile --no-index --find-links "$work/wheels" podlane
/opt/podlane/bin/pip uninstall -q -y pip setuptools
find /opt/podlane -name __pycache__ -prune -exec rm -r {} +
# dpkg changes the times of files: a compiled file must not be compared with the time of its source.
/opt/podlane/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/podlane/lib
export PYTHONDONTWRITEBYTECODE=1
PYTHONPATH=$work/man /opt/podlane/bin/python -m man "$work/share/man" >/dev/null
for shell in bash zsh fish; do
    /opt/podlane/bin/podlane completion "$shell" >"$work/$shell"
done
INSIDE

install -d "$folder/opt" "$folder/usr/share"
cp -a "$work/environment" "$folder/opt/podlane"
install -D -m 0644 "$work/bash" "$folder/usr/share/bash-completion/completions/podlane"
install -D -m 0644 "$work/zsh" "$folder/usr/share/zsh/vendor-completions/_podlane"
install -D -m 0644 "$work/fish" "$folder/usr/share/fish/vendor_completions.d/podlane.fish"
page() { install -D -m 0644 "$work/share/man/man$3/$2.$3.gz" "$folder/../$1/usr/share/man/man$3/$2.$3.gz"; }
page podlane podlane 1
page podlane podlane-cni 8
page podlane-master podlane-master 8
page podlane-node podlane-node-agent 8
page podlane-node podlane-sdn 8
