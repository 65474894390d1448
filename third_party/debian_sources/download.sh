#!/bin/bash
# download.sh PACKAGE...: puts the sources of Debian source packages into ./PACKAGE, patched as Debian builds them,
# without root and without touching the machine's own lists: apt's sources are asked once more, for deb-src.
set -euo pipefail
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/sources" "$state/lists/partial" "$state/cache/archives/partial"

# Both formats of apt's sources. A line for a CD cannot serve us.
shopt -s nullglob
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -f "$list" ] || continue
    sed -nE '/cdrom:/d; s/^[[:space:]]*deb([[:space:]])/deb-src\1/p' "$list" > "$state/sources/$(basename "$list" .list).list"
done
for stanzas in /etc/apt/sources.list.d/*.sources; do
    sed -E 's/^Types:.*/Types: deb-src/I' "$stanzas" > "$state/sources/$(basename "$stanzas")"
done

options=(
    -qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$state/sources"
    -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache"
    -o Acquire::Languages=none -o APT::Sandbox::User=
)
# A third party's source may have no source packages: what counts is whether ours are found.
apt-get "${options[@]}" update || true
for package in "$@"; do
    mkdir "$state/$package"
    (cd "$state/$package" && apt-get "${options[@]}" source "$package")
    mv "$state/$package"/*/ "$package"
    find "$package" -type f \( -name BUILD -o -name BUILD.bazel \) -delete  # we have our own
done
