#!/bin/bash
# download.sh PACKAGE...: unpacks Debian packages into ./PACKAGE, without root and without touching the machine's own
# lists.
set -euo pipefail
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
options=(
    -qq -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache"
    -o Acquire::Languages=none -o APT::Sandbox::User=
)
# A third party's source may be away: what counts is whether ours are found.
apt-get "${options[@]}" update || true
for package in "$@"; do
    mkdir "$state/$package"
    (cd "$state/$package" && apt-get "${options[@]}" download "$package")
    dpkg-deb -x "$state/$package"/*.deb "$package"
done
