# Functions for scripts that consist of steps. `step NAME` begins a step and prints the duration of the
# one before; `steps_done` ends the last one.

step_name=
step_begun=0

step() {
  steps_done
  step_name=$*
  step_begun=$SECONDS
  printf '\n== %s\n' "$step_name"
}

steps_done() {
  if [ -n "$step_name" ]; then
    printf -- '-- %s: %d s\n' "$step_name" $((SECONDS - step_begun))
  fi
  step_name=
}
