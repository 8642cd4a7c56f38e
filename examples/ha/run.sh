#!/usr/bin/env bash
# Three planners, two gateways and four scripted workers on this machine, and a
# walk through killing each of them while clients stream. Every stream must come
# whole, and every new request must be answered: the script counts, and fails if
# one is not.
#
#   examples/ha/run.sh [--short] [--keep]
#
# It needs bash and the binary (YARDMASTER, by default bin/yardmaster). Ports of
# 127.0.0.1 from YARDMASTER_HA_PORT (18100) on are used. --short shortens the
# pauses, --keep leaves the folder with logs.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
yardmaster=${YARDMASTER:-$here/../../bin/yardmaster}
base=${YARDMASTER_HA_PORT:-18100}
away=30 short=false keep=false
for word in "$@"; do
  case $word in
    --short) away=4 short=true ;;
    --keep) keep=true ;;
    *) echo "usage: $0 [--short] [--keep]" >&2; exit 2 ;;
  esac
done
[[ -x $yardmaster ]] || { echo "no $yardmaster: run make build, or set YARDMASTER" >&2; exit 2; }

dir=$(mktemp -d "${TMPDIR:-/tmp}/yardmaster-ha.XXXXXX")
model=llama-3.1-8b
ask='' # the admin address of whoever is asked about the cluster
declare -A pid # by name, of what this script has started

# ---- processes ------------------------------------------------------------

port() { echo $((base + $1)); }
peer() { echo "127.0.0.1:$(port $((10 + $1)))"; }
control() { echo "127.0.0.1:$(port $((20 + $1)))"; }
admin() { echo "127.0.0.1:$(port $((30 + $1)))"; }
api() { port $((40 + $1)); }
peers="$(peer 0),$(peer 1),$(peer 2)"
controls="$(control 0),$(control 1),$(control 2)"

start() { # NAME ARGS...
  local name=$1
  shift
  "$yardmaster" "$@" >>"$dir/$name.log" 2>&1 &
  pid[$name]=$!
}

planner() { # 0 to 2
  start "planner-$1" planner --id "planner-$1" --data-dir "$dir/planner-$1" --token-file "$dir/cluster.token" \
    --join "$peers" --bootstrap-expect 3 --peer-listen "$(peer "$1")" --listen "$(control "$1")" \
    --gateway=false --gateway-admin "$(admin "$1")"
}

gateway() { # 0 or 1
  start "gateway-$1" gateway --id "gateway-$1" --join "$peers" --token-file "$dir/cluster.token" \
    --listen "127.0.0.1:$(api "$1")" --admin "$(admin $((3 + $1)))"
}

worker() { # 0 to 3
  start "worker-$1" worker --id "worker-$1" --engine scripted --script "$here/../scripted/slow-8b.yaml" --planner "$controls"
}

end() { # SIGNAL NAME: send it, and wait for the end
  kill "-$1" "${pid[$2]}" 2>/dev/null || true
  wait "${pid[$2]}" 2>/dev/null || true
  unset "pid[$2]"
}

why() { # it failed: what the cluster says, and the end of each log
  timeout 20 "$yardmaster" cluster status --admin "$ask" || true
  tail -n 8 "$dir"/*.log || true
}

cleanup() {
  local code=$? name
  trap - EXIT INT TERM
  touch "$dir/stop"
  ((code == 0 || code == 130)) || why >&2
  for name in "${!pid[@]}"; do kill -KILL "${pid[$name]}" 2>/dev/null || true; done
  wait 2>/dev/null || true
  if $keep || ((code != 0)); then echo "logs are in $dir"; else rm -rf "$dir"; fi
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# ---- what an operator would ask -------------------------------------------

cluster() { "$yardmaster" cluster "$@" --admin "$ask"; }

leader() { # by number; empty without one
  cluster status -o json 2>/dev/null | sed -n 's/^  "leader": "planner-\([0-9]\)".*/\1/p'
}

eventually() { # SECONDS WHAT COMMAND...
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < until)) || { echo "never came true: $what" >&2; return 1; }
    sleep 0.1
  done
}

healthy() { [[ $(cluster health -o json | grep -c '"healthy": true') -ge $1 ]] && cluster health; }
another() { local now; now=$(leader) && [[ -n $now && $now != "$1" ]]; }
ready() { # PORT
  local status
  exec 9<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n' >&9
  read -r -t 5 _ status _ <&9
  exec 9<&- 9>&-
  [[ $status == 200 ]]
}

# ---- clients ---------------------------------------------------------------

# stream asks a gateway for a stream of N tokens, and reads it to its end marker.
# It prints whole, refused (no connection: another gateway is to be tried), or
# what was wrong.
stream() { # PORT N
  local body line fd tokens=0 status='' whole=false
  body='{"model":"'$model'","prompt":"client '$BASHPID' '$RANDOM'","max_tokens":'$2',"stream":true,"ignore_eos":true}'
  { exec {fd}<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || { echo refused; return; }
  printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
    "${#body}" "$body" >&"$fd" 2>/dev/null || true
  while IFS= read -r -t 60 line <&"$fd"; do
    line=${line%$'\r'}
    case $line in
      HTTP/1.1*) status=${line#HTTP/1.1 } ;;
      'data: [DONE]') whole=true ;;
      'data: {"error'*) echo "error event: $line"; exec {fd}<&-; return ;;
      'data: '*) tokens=$((tokens + 1)) ;;
    esac
  done
  exec {fd}<&-
  if $whole && ((tokens >= $2)); then
    echo whole
  elif [[ -z $status && $tokens -eq 0 ]]; then
    echo refused # it closed the connection before it took the request
  else
    echo "status ${status:-none}, $tokens of $2 tokens, end marker: $whole"
  fi
}

# client streams for as long as the script runs. It prefers one gateway and goes to
# the other when that does not take its request, as a load balancer would.
client() { # NUMBER
  local first=$(($1 % 2)) try said
  trap - EXIT INT TERM
  while [[ ! -e $dir/stop ]]; do
    for try in 0 1 2 3 4 5; do
      said=$(stream "$(api $(((first + try) % 2)))" $((40 + RANDOM % 160)))
      [[ $said == refused ]] || break
      sleep 0.1
    done
    echo "$said" >>"$dir/client-$1.txt"
  done
}

count() { cat "$dir"/client-*.txt 2>/dev/null | grep -c "$@" || true; }

step() {
  local broken
  echo "$((SECONDS - began))s  $1"
  broken=$(count -v '^whole$')
  ((broken == 0)) || { echo "$broken requests or streams failed:" >&2; grep -hv '^whole$' "$dir"/client-*.txt | head -5 >&2; exit 1; }
}

# ---- the walk --------------------------------------------------------------

began=$SECONDS
ask=$(admin 0)
"$yardmaster" cluster token new "$dir/cluster.token" >/dev/null
for i in 0 1 2; do planner "$i"; done
for i in 0 1; do gateway "$i"; done
for i in 0 1 2 3; do worker "$i"; done
eventually 60 'the cluster is healthy' healthy 6
cluster autopilot set --stable-after 1s >/dev/null # a walk in a hurry
for i in 0 1; do eventually 30 "gateway-$i is ready" ready "$(api "$i")"; done
cluster status
ask=$(admin 3) # from now on a gateway is asked, which is there when planners are not

clients=6
for ((i = 0; i < clients; i++)); do client "$i" & pid[client-$i]=$!; done
pause() { sleep "$($short && echo 1 || echo 5)"; }
pause
step "$clients clients stream through two gateways"

old=$(leader)
end KILL "planner-$old"
eventually 20 'another planner leads' another "$old"
pause
step "planner-$old, which led, was killed: planner-$(leader) leads"
planner "$old"
eventually 60 'the cluster is healthy' healthy 6
step "planner-$old is back"

old=$(leader)
end TERM "planner-$old"
eventually 20 'another planner leads' another "$old"
step "planner-$old was stopped in good order: planner-$(leader) leads"
planner "$old"
eventually 60 'the cluster is healthy' healthy 6

for i in 0 1 2 3; do
  end KILL "worker-$i"
  pause
  worker "$i"
  step "worker-$i was killed and started again: its streams went on elsewhere"
  pause
  $short && [[ $i == 1 ]] && break
done

# A gateway holds its clients' connections: it must be asked to go, not shot.
end TERM gateway-1
step 'gateway-1 was stopped: its streams ended first, its clients are at gateway-0'
gateway 1
eventually 30 'gateway-1 is ready' ready "$(api 1)"
step 'gateway-1 is back'

for i in 0 1 2; do end KILL "planner-$i"; done
sleep "$away"
step "all planners were killed ${away}s ago: streams and new requests go on"
for i in 0 1 2; do planner "$i"; done
eventually 60 'the cluster is healthy' healthy 6
pause
step 'all planners are back'

touch "$dir/stop"
for ((i = 0; i < clients; i++)); do wait "${pid[client-$i]}" || true; unset "pid[client-$i]"; done
step "$(count '^whole$') streams came whole, none failed"
cluster status
