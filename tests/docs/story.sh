# The shell of a story. Each step is a file that it runs, so that functions, variables and the
# folder stay.
set -o pipefail
shopt -s expand_aliases
server=
stop() { if [ -n "$server" ]; then kill "$server"; wait "$server"; server=; fi 2>/dev/null; }
trap stop EXIT
serve() {
  stop
  . "$1" </dev/null &
  server=$!
  until curl --silent --fail --output /dev/null "$2"; do
    kill -0 "$server" 2>/dev/null || return 1
    sleep 0.2
  done
}
begin() { printf '%s %s\n' "$1" "$EPOCHREALTIME" >>"$STEPS/begun"; }
expect() { [ "$1" = "$2" ] || { echo "status $1, expected $2" >>"$3"; exit 1; }; }
