#!/usr/bin/env bash
# Installs the libraries that the benchmark compares with, each into a virtual environment of its
# own: install_peers.sh [VENV [PEER...]]. VENV (default .venv) is the environment that has symmoe;
# the peers go to VENV/peers/NAME. A peer that cannot be installed is named and left out.
set -u

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:-.venv}
shift || true
peers=("$@")
[ ${#peers[@]} -gt 0 ] || peers=(intel_mpi mpich oneccl)

if [ ! -x "$venv/bin/python" ]; then
  echo "install_peers: no $venv/bin/python" >&2
  exit 1
fi
venv=$(cd "$venv" && pwd)

packages_of() {
  case $1 in
    intel_mpi) echo 'mpi4py>=4.1 impi-rt' ;;
    mpich) echo 'mpi4py>=4.1 mpich' ;;
    openmpi) echo 'mpi4py>=4.1 openmpi' ;;
    # From 2021.17 on, libccl.so.1 needs a libccl.so.2 that the package for CPUs does not bring.
    oneccl) echo 'oneccl-cpu<2021.17 oneccl-cpu-devel<2021.17' ;;
    *) return 1 ;;
  esac
}

build_oneccl_shim() {
  g++ -O2 -std=c++17 -shared -fPIC -I"$1/include" "$here/oneccl_shim.cpp" \
    -o "$1/lib/libsymmoe_oneccl_shim.so" -L"$1/lib" -lccl -Wl,-rpath,"$1/lib"
}

install() {
  local name=$1 home="$venv/peers/$1" packages log
  if [ -e "$home/installed" ]; then
    echo "$name: already in $home"
    return
  fi
  if ! packages=$(packages_of "$name"); then
    echo "$name: not known (intel_mpi mpich openmpi oneccl)" >&2
    return 1
  fi
  log=$(mktemp)
  # Word splitting wanted: one word a package.
  # shellcheck disable=SC2086
  if "$venv/bin/python" -m venv "$home" >"$log" 2>&1 &&
    "$home/bin/python" -m pip --disable-pip-version-check -q install $packages >>"$log" 2>&1 &&
    { [ "$name" != oneccl ] || build_oneccl_shim "$home" >>"$log" 2>&1; }; then
    touch "$home/installed"
    echo "$name: installed in $home"
  else
    echo "$name: left out, it could not be installed:" >&2
    tail -n 3 "$log" | sed 's/^/    /' >&2
    rm -rf "$home"
  fi
  rm -f "$log"
}

for peer in "${peers[@]}"; do
  install "$peer" || exit 1
done
