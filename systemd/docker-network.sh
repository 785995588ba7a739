#!/bin/sh
# Appends the options that podlane-sdn has written to the command of docker.service, whichever dockerd that is, and
# restarts it. The drop-in file is gone after a boot: without podlane-sdn there is no bridge that dockerd could use.
set -eu
options=/run/podlane/docker-network
drop_in=/run/systemd/system/docker.service.d/zz-podlane.conf

rm -f "$drop_in"
command=$(systemctl cat docker.service | awk '
    continued { text = text " " $0 }
    !continued { text = $0 }
    { continued = sub(/\\$/, "", text) }
    !continued && sub(/^ExecStart=/, "", text) { command = text }
    END { print command }')
[ -n "$command" ] || { echo "<3>docker.service has no ExecStart; nothing was changed" >&2; exit 1; }
mkdir -p "${drop_in%/*}"
cat >"$drop_in" <<DROP_IN
[Service]
EnvironmentFile=-$options
ExecStart=
ExecStart=$command \$DOCKER_NETWORK_OPTIONS
DROP_IN
systemctl daemon-reload
systemctl try-restart docker.service
