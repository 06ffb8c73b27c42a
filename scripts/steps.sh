# Functions for scripts that consist of steps.
#
#   step NAME             starts a step; prints the duration of the previous step
#   steps_done            ends the last step
#   logged FILE COMMAND   runs a command and keeps a copy of its output in target/test-output/FILE.log
#   slowest_tests         prints the ten slowest tests of the logs, and the duration of each step

step_name=
step_started=0
step_times=()

step() {
  steps_done
  step_name=$*
  step_started=$SECONDS
  printf '\n== %s\n' "$step_name"
}

steps_done() {
  if [ -n "$step_name" ]; then
    local duration=$((SECONDS - step_started))
    printf -- '-- %s: %d s\n' "$step_name" "$duration"
    step_times+=("$(printf '%6d s  %s' "$duration" "$step_name")")
  fi
  step_name=
}

logged() {
  local log=target/test-output/$1.log
  shift
  mkdir -p target/test-output
  "$@" 2>&1 | tee "$log"
}

slowest_tests() {
  steps_done
  local logs=(target/test-output/*.log)
  [ -e "${logs[0]}" ] || logs=(/dev/null)
  printf '\nSlowest tests:\n'
  # Durations are in lines such as "test NAME ... ok <1.234s>" (Rust's tests) and "1.23s call NAME" (pytest).
  sed -nE \
    -e 's/^test (.*) \.\.\. ok <([0-9.]+)s>$/\2 \1/p' \
    -e 's/^([0-9.]+)s (call|setup|teardown) +(.*)$/\1 \3 (\2)/p' \
    "${logs[@]}" |
    sort -rn | awk 'NR <= 10 { time = $1; sub(/^[^ ]+ /, ""); printf "%8.1f s  %s\n", time, $0 }'
  printf '\nSteps:\n'
  printf '%s\n' "${step_times[@]}"
}
