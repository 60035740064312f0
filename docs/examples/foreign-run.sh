#!/usr/bin/env bash
# Runs that are driven over HTTP alone, through everything that can happen to runs, steps, hooks and waits. Whatever
# executes them may be written in any language: it appends what happens, and what cannot happen is refused.
#
#   LEDGERLINE_API=http://127.0.0.1:8787 LEDGERLINE_KEY=… docs/examples/foreign-run.sh
#
# The key needs the scope `write`. Each answer is checked; the first that is not as expected ends the script.
set -euo pipefail

: "${LEDGERLINE_API:?where the API is, such as http://127.0.0.1:8787}"
: "${LEDGERLINE_KEY:?an API key with the scope write}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "foreign-run: $1" >&2
  exit 1
}

# A new ULID: ten digits of time and sixteen random ones.
ulid() {
  local digits=0123456789ABCDEFGHJKMNPQRSTVWXYZ time text='' i
  time=$(($(date +%s) * 1000))
  for ((i = 0; i < 10; i++)); do
    text=${digits:time % 32:1}$text
    time=$((time / 32))
  done
  for ((i = 0; i < 16; i++)); do text+=${digits:RANDOM % 32:1}; done
  echo "$text"
}

# request STATUS METHOD PATH BODY [TEXT…]: the answer must have the status, and every text in it.
request() {
  local wanted=$1 method=$2 path=$3 body=$4 status text
  shift 4
  local key=(--header "Authorization: Bearer $LEDGERLINE_KEY")
  # A token that cannot be guessed is the credential itself.
  case $path in /api/hooks/htok_*) key=() ;; esac
  status=$(curl --silent --show-error --output "$folder/answer" --write-out '%{http_code}' --request "$method" \
    --header 'Content-Type: application/json' ${key[@]+"${key[@]}"} --data "$body" "$LEDGERLINE_API$path") ||
    fail "$method $path: no answer"
  answer=$(<"$folder/answer")
  printf '%s  %-4s  %s  %s\n' "$status" "$method" "$path" "$body"
  [ "$status" = "$wanted" ] || fail "$method $path: $wanted is expected; the answer was $status: $answer"
  for text in "$@"; do
    case $answer in *"$text"*) ;; *) fail "$method $path: \`$text\` is expected in the answer: $answer" ;; esac
  done
}

# append RUN TYPE ID DATA [TEXT…] appends an event; illegal STATE RUN TYPE ID DATA must be refused because of a state.
append() {
  local run=$1 type=$2 id=$3 data=$4
  shift 4
  request 201 POST "/api/runs/$run/events" "$(event "$type" "$id" "$data")" "$@"
}
illegal() {
  local state=$1 run=$2
  request 409 POST "/api/runs/$run/events" "$(event "$3" "$4" "$5")" "\"state\":\"$state\"" '"status":409'
}
event() {
  local id=''
  [ -z "$2" ] || id="\"correlationId\":\"$2\","
  echo "{\"eventType\":\"$1\",$id\"eventData\":$3}"
}

# field NAME: the first text of this name in the last answer.
field() {
  sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$folder/answer" | head -n 1
}

unknown=wrun_$(ulid) order=wrun_$(ulid) broken=wrun_$(ulid) early=wrun_$(ulid) late=wrun_$(ulid)
created='{"workflowName":"foreign-order","input":{"orderId":"o-1"}}'

echo '# A run begins'
request 404 GET "/api/runs/$unknown" '' 'there is no'
request 404 POST "/api/runs/$unknown/events" '{"eventType":"run_started"}'
append "$order" run_created '' "$created" '"run":{' '"state":"pending"'
illegal pending "$order" run_created '' "$created"
illegal pending "$order" run_completed '' '{"output":null}'
illegal pending "$order" step_created "step_$(ulid)" '{"stepName":"too early"}'
append "$order" run_started '' '{"workflowVersion":"1"}' '"state":"running"'
illegal running "$order" run_started '' '{}'

echo '# A step is tried, tried again, and completed; another fails'
step=step_$(ulid)
illegal absent "$order" step_started "$step" '{"attempt":1}'
append "$order" step_created "$step" '{"stepName":"charge","input":[12.5]}' '"step":{' '"state":"pending"'
illegal pending "$order" step_created "$step" '{"stepName":"charge"}'
illegal pending "$order" step_completed "$step" '{"result":1}'
illegal pending "$order" step_retrying "$step" '{"error":"too early"}'
append "$order" step_started "$step" '{"attempt":1}' '"state":"running"' '"attempt":1'
append "$order" step_retrying "$step" '{"error":"the bank is busy"}' '"state":"pending"' '"retries":1'
append "$order" step_started "$step" '{"attempt":2}' '"state":"running"' '"attempt":2'
append "$order" step_completed "$step" '{"result":{"paid":12.5}}' '"state":"completed"' '"paid":12.5'
illegal completed "$order" step_started "$step" '{"attempt":3}'
step=step_$(ulid)
append "$order" step_created "$step" '{"stepName":"send a card"}' '"state":"pending"'
append "$order" step_started "$step" '{"attempt":1}' '"state":"running"'
# The program that ran it died: the run is started once more without a request from outside.
append "$order" step_started "$step" '{"attempt":2}' '"state":"running"' '"attempt":2'
append "$order" step_failed "$step" '{"error":"no address","errorCode":"address"}' '"state":"failed"'
illegal failed "$order" step_retrying "$step" '{"error":"too late"}'

echo '# A hook with a token of our own: received twice, taken for others, disposed of'
hook=hook_$(ulid) token=approve-$(ulid)
illegal absent "$order" hook_disposed "$hook" '{}'
append "$order" hook_created "$hook" "{\"token\":\"$token\",\"metadata\":{\"who\":\"desk\"}}" '"hook":{' '"state":"active"'
second=hook_$(ulid)
append "$order" hook_created "$second" "{\"token\":\"$token\"}" '"eventType":"hook_conflict"' '"state":"conflicted"'
illegal conflicted "$order" hook_disposed "$second" '{}'
request 202 POST "/api/hooks/$token" '{"approved":false}' "\"runId\":\"$order\""
request 202 POST "/api/hooks/$token" '"yes, after all"' '"eventId":"evnt_'
request 200 GET "/api/runs/$order" '' '"received":2'
append "$order" hook_received "$hook" '{"payload":"from the runner itself"}' '"received":3'
append "$order" hook_disposed "$hook" '{}' '"state":"disposed"'
illegal disposed "$order" hook_received "$hook" '{"payload":1}'
request 410 POST "/api/hooks/$token" '{}'
request 404 POST "/api/hooks/approve-$(ulid)" '{}'

echo '# A hook whose token was made for us needs no key'
hook=hook_$(ulid)
append "$order" hook_created "$hook" '{}' '"state":"active"' '"token":"htok_'
made=$(field token)
request 202 POST "/api/hooks/$made" '{"by":"the holder of the token"}' "\"runId\":\"$order\""
request 404 POST /api/hooks/htok_00000000000000000000000000000000 '{}'

echo '# A sleep ends when its runner says so; a wait for an event when the event is sent'
wait=wait_$(ulid) later=$((($(date +%s) + 3600) * 1000))
illegal absent "$order" wait_completed "$wait" '{}'
append "$order" wait_created "$wait" "{\"resumeAt\":$later}" '"wait":{' '"state":"waiting"' '"kind":"sleep"'
append "$order" wait_completed "$wait" '{}' '"state":"completed"' '"outcome":"elapsed"'
illegal completed "$order" wait_completed "$wait" '{}'
wait=wait_$(ulid) number=o-$(ulid)
append "$order" wait_created "$wait" \
  "{\"eventName\":\"payment.received\",\"matchCriteria\":{\"orderId\":\"$number\"},\"timeoutAt\":$later}" \
  '"state":"waiting"' '"kind":"event"'
request 202 POST /api/events/send '{"event":"payment.received","match":{"orderId":"of another customer"}}' '"eventId":"evnt_'
request 200 GET "/api/runs/$order" '' '"state":"waiting"'
request 202 POST /api/events/send \
  "{\"event\":\"payment.received\",\"match\":{\"orderId\":\"$number\",\"by\":\"card\"},\"data\":{\"amount\":12.5}}"
sent=$(field eventId)
request 200 GET "/api/runs/$order" '' '"outcome":"event"' "\"eventId\":\"$sent\""
illegal completed "$order" wait_completed "$wait" '{}'
request 200 GET '/api/events/sent?event=payment.received&limit=1' '' "\"eventId\":\"$sent\"" '"consumedCount":1'

echo '# The run ends, and nothing follows'
append "$order" run_completed '' '{"output":{"shipped":true}}' '"state":"completed"' '"shipped":true'
illegal completed "$order" run_failed '' '{"error":"too late"}'
illegal completed "$order" step_created "step_$(ulid)" '{"stepName":"too late"}'
request 409 POST "/api/runs/$order/cancel" '' '"state":"completed"'
request 410 POST "/api/hooks/$made" '{}'

echo '# A run fails; what was open is closed with it'
append "$broken" run_created '' "$created" '"state":"pending"'
append "$broken" run_started '' '{}' '"state":"running"'
append "$broken" step_created "step_$(ulid)" '{"stepName":"never begun"}' '"state":"pending"'
append "$broken" run_failed '' '{"error":"out of paper","errorCode":"paper"}' '"state":"failed"' '"errorCode":"paper"'
request 200 GET "/api/runs/$broken" '' '"errorCode":"abandoned"'
illegal failed "$broken" run_started '' '{}'

echo '# A run is cancelled before it begins, and another while it runs'
append "$early" run_created '' "$created" '"state":"pending"'
request 200 POST "/api/runs/$early/cancel" '{"reason":"ordered twice"}' '"state":"cancelled"'
illegal cancelled "$early" run_started '' '{}'
append "$late" run_created '' "$created" '"state":"pending"'
append "$late" run_started '' '{}' '"state":"running"'
hook=hook_$(ulid)
append "$late" hook_created "$hook" '{}' '"state":"active"'
made=$(field token)
append "$late" wait_created "wait_$(ulid)" '{"eventName":"never","matchCriteria":{}}' '"state":"waiting"'
append "$late" run_cancelled '' '{"reason":"the shop is closed"}' '"state":"cancelled"'
request 200 GET "/api/runs/$late" '' '"state":"disposed"' '"outcome":"abandoned"'
request 410 POST "/api/hooks/$made" '{}'
illegal cancelled "$late" run_cancelled '' '{}'

echo '# All of it happened as expected'
echo "completed $order"
echo "failed $broken"
echo "cancelled $early"
echo "cancelled $late"
