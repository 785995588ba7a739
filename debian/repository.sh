#!/usr/bin/env bash
# Makes a signed apt repository of packages: repository.sh PACKAGES REPOSITORY KEY.
# Packages that the repository has already stay in it, for downgrades. KEY is a file with a secret key of OpenPGP without
# passphrase; it is made if it is not there.
set -euo pipefail

packages=$1 repository=$2 key=$3
compgen -G "$packages/podlane*.deb" >/dev/null || { echo "$packages has no packages; make deb builds them" >&2; exit 1; }

keyring=$(mktemp -d)
stop() {
    gpgconf --homedir "$keyring" --kill all
    rm -rf "$keyring"
}
trap stop EXIT
gpg=(gpg --homedir "$keyring" --batch --quiet --no-tty)
if [[ ! -e $key ]]; then
    "${gpg[@]}" --passphrase '' --quick-generate-key "Podlane repository of $(hostname)" ed25519 sign never
    (umask 077; "${gpg[@]}" --armor --export-secret-keys --output "$key.new")
    mv "$key.new" "$key"
    echo "$key is new: the secret key of this repository. Keep it, and keep it secret"
fi
"${gpg[@]}" --import "$key"

mkdir -p "$repository"
cp -u "$packages"/podlane*.deb "$repository/"
"${gpg[@]}" --armor --export --output "$repository/podlane.asc.new"
mv "$repository/podlane.asc.new" "$repository/podlane.asc"
cd "$repository"
apt-ftparchive packages . >Packages.new
mv Packages.new Packages
gzip -9nk -f Packages
rm -f Release
apt-ftparchive -o APT::FTPArchive::Release::Origin=Podlane -o APT::FTPArchive::Release::Label=Podlane release . >"$keyring/Release"
"${gpg[@]}" --clearsign --output "$keyring/InRelease" "$keyring/Release"
install -m 0644 "$keyring/InRelease" InRelease
echo "$repository: $(grep -c '^Package:' Packages) packages. On a host, as root:"
echo "  install -m 0644 podlane.asc /etc/apt/keyrings/podlane.asc"
echo "  echo 'deb [signed-by=/etc/apt/keyrings/podlane.asc] https://SERVER/PATH ./' > /etc/apt/sources.list.d/podlane.list"
