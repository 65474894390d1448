#!/bin/bash
# download.sh PACKAGE|FOLDER=PACKAGE,PACKAGE... ...: unpacks Debian packages into ./PACKAGE, or several into ./FOLDER with all their
# programs and libraries in ./FOLDER/usr, without root and without touching the machine's own lists.
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
for argument in "$@"; do
    folder=${argument%%=*}
    mkdir -p "$state/$folder" "$folder"
    if [ "$folder" != "$argument" ]; then
        # As on an installed Debian, what is for /lib is in /usr/lib.
        for name in bin sbin lib; do
            mkdir -p "$folder/usr/$name"
            ln -s "usr/$name" "$folder/$name"
        done
    fi
    packages=${argument#*=}
    (cd "$state/$folder" && apt-get "${options[@]}" download ${packages//,/ })
    for package in "$state/$folder"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$folder"
    done
done
