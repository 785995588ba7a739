#!/usr/bin/env bash
# Builds the packages of the files here, or of a commit, into a folder: build.sh FOLDER [COMMIT].
# It builds a copy, so that this clone stays as it is. Packages of a commit that are there already are not built again.
set -euo pipefail

folder=$1 commit=${2:-}
source=$(cd "$(dirname "$0")/.." && pwd)
version=$(python3 "$source/debian/version.py" "$commit")
python_version=$(python3 "$source/debian/version.py" --python "$commit")
package="$folder/podlane_${version}_$(dpkg --print-architecture).deb"
if [[ $version != *.dirty && -e $package ]]; then
    echo "$package is here already"
    exit 0
fi
# The changed files that git knows, as a commit of no branch; nothing if there are none.
tree=${commit:-$(git -C "$source" -c user.name=build -c user.email=build@localhost stash create)}
git -C "$source" cat-file -e "${tree:-HEAD}:debian/control" 2>/dev/null ||
    { echo "$commit has no debian/control; packages can be built of later commits" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/podlane"
git -C "$source" archive "${tree:-HEAD}" | tar -x -C "$work/podlane"
sed -i "s/^version = .*/version = \"$python_version\"/" "$work/podlane/pyproject.toml"
cat >"$work/podlane/debian/changelog" <<CHANGELOG
podlane ($version) unstable; urgency=medium

  * CHANGELOG.md has the changes of this version.

 -- $(sed -n 's/^Maintainer: //p' "$work/podlane/debian/control")  $(git -C "$source" log -1 --format=%cD "${commit:-HEAD}")
CHANGELOG

echo "building the packages of $version"
log=$work/log
if ! (cd "$work/podlane" && PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 dpkg-buildpackage -b -us -uc) >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
mkdir -p "$folder"
# The package that is looked for is there last: what is half copied is built again.
for file in "$work"/podlane-*.deb "$work"/podlane_*.changes "$work"/podlane_*.buildinfo "$work"/podlane_*.deb; do
    mv "$file" "$folder/"
done
du -h --apparent-size "$folder"/podlane*_"$version"_*.deb
