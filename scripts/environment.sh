# The environment of scripts/test, scripts/test-long and scripts/check.

# The tests expect binaries in target/. Go's caches are also in the checkout.
unset CARGO_TARGET_DIR RUSTFLAGS
export GOCACHE="$PWD/target/go/build" GOMODCACHE="$PWD/target/go/modules" GOFLAGS=-modcacherw
export GOTOOLCHAIN=local

# All test builds use the same packages and features, so that no crate is compiled twice.
features=(--workspace --locked --features larder-server/delayed)
pytest_processes=${PYTEST_PROCESSES:-6}

# Runs cargo test, and prints the duration of each test. The flag for durations is unstable, and a stable toolchain
# accepts it only with RUSTC_BOOTSTRAP. This function sets that variable for the test programs, but not for the
# compiler.
cargo_test() {
  local host
  host=$(rustc -vV | sed -n 's/^host: //p')
  env "CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$host")_RUNNER=env RUSTC_BOOTSTRAP=1" \
    RUST_TEST_THREADS="${TEST_THREADS:-8}" \
    cargo test "$@" -- -Z unstable-options --report-time
}

install_python() {
  # Recreates an incomplete environment, or one that was copied from another path.
  .venv/bin/pip --version >/dev/null 2>&1 || python3 -m venv --clear .venv
  .venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
}
