# Sourced by scripts that work in steps: `step NAME` begins one and says how long the one before took;
# `steps_done` ends the last.

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
