#!/bin/sh
# Install the named Debian packages: the newest that the base image's repositories have, or those of SNAPSHOT, a time such
# as 20261101T000000Z. Repositories of the base image stay as they are, for images that are built on this one.
set -eu
options=
if [ -n "${SNAPSHOT:-}" ]; then
  . "${OS_RELEASE:-/etc/os-release}"
  if [ "$ID" != debian ]; then
    echo "SNAPSHOT=$SNAPSHOT is a time of Debian's archive, and the base image is $ID. Next: build without SNAPSHOT" >&2
    exit 1
  fi
  list=$(mktemp)
  for place in "debian $VERSION_CODENAME" "debian $VERSION_CODENAME-updates" "debian-security $VERSION_CODENAME-security"; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $ARCHIVE/${place% *}/$SNAPSHOT ${place#* } main"
  done >"$list"
  chmod 644 "$list"
  # A snapshot's index has expired by now; its signature still counts.
  options="-o Dir::Etc::sourcelist=$list -o Dir::Etc::sourceparts=- -o Acquire::Check-Valid-Until=false"
fi
# shellcheck disable=SC2086
apt-get $options update
# shellcheck disable=SC2086
apt-get $options install -y --no-install-recommends "$@"
rm -rf "${list:-}" /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/*
