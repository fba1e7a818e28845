# Run the driver of a pod whose files can be edited: again on SIGHUP, until SIGTERM. A driver that an edit has broken is
# not restarted by the kubelet, which would wait longer each time: the next edit starts it.
over= again=
trap 'over=1; kill -TERM "$driver" 2>/dev/null' TERM INT
trap 'again=1; kill -TERM "$driver" 2>/dev/null' HUP
while [ -z "$over" ]; do
  again=
  tailrace "$@" &
  driver=$!
  [ -z "$over$again" ] || kill -TERM "$driver"
  # A signal ends `wait`, and the driver still finishes its batch.
  while :; do
    wait "$driver"
    code=$?
    kill -0 "$driver" 2>/dev/null || break
  done
  [ -n "$over$again" ] || echo "the driver ended with $code; the next edit starts it" >&2
  while [ -z "$over$again" ]; do
    sleep 1 &
    wait $!
  done
done
exit "$code"
