#!/usr/bin/env bash
# The published quality tables on one machine with CUDA cards, all parts at once:
#   OUT=results bash assets/quality/run_on_gpu.sh
# PER_GPU processes a card take the work from one list in turn, most telling settings first, so that a run that ends early
# has them on every prompt. RECORDERS more record the probe traces that the calibrated methods wait for, the first of
# them the layers' sensitivity too, the last compiles the kernels; one tunes a policy. SWEEP seconds after its start no process begins
# a new run. Then every setting is timed on the CPU, one thread per process, TIMING seconds long. Where the machine has
# NVIDIA's Multi-Process Service, the processes of a card share it through that (MPS=0: they take turns).
# Every 20 s all that is there is packed into $OUT, so that a kill at any time loses nothing; unpacked into the folder
# RESUME, the same command goes on where it stopped. CARDS="1" uses only that one; JOIN=1 with the folder of a run in
# progress as RESUME adds processes on more cards to it, for SWEEP seconds.
set -u
: "${OUT:?where the results go}" "${MODEL:=assets/tiny}" "${PROMPTS:=64}" "${STEPS:=30}" "${SWEEP:=420}" "${PER_GPU:=24}"
: "${DEVICE:=cuda}" "${PROBES:=8}" "${RECORDERS:=4}" "${POLICIES:=50}" "${CPU_TIMERS:=14}" "${TIMING:=60}" "${LAYERS:=6}"
: "${FIRST:=24}" "${TUNING:=24}" "${ACCURACY:=192}" "${RESUME:=}" "${METHODS:=}" "${CARDS:=}" "${JOIN:=0}" "${MPS:=1}" "${TABLES:=1}"
: "${TUNE:=1}" "${GRIDS:=brief frontier extended defaults agreement fine accuracy sensitive}"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENCV_FOR_THREADS_NUM=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
work=${RESUME:-$(mktemp -d)}; mkdir -p "$OUT" "$work/probes" "$work/share"; began=$SECONDS
mapfile -t cards < <(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9]*\):.*(UUID: \(.*\))$/\1 \2/p' |
  while read -r number id; do [ -z "$CARDS" ] || [[ " $CARDS " == *" $number "* ]] && echo "$id"; done)
[ "${#cards[@]}" -gt 0 ] || cards=("")
services=()
close() { for pipe in "${services[@]}"; do echo quit | CUDA_MPS_PIPE_DIRECTORY=$pipe timeout 15 nvidia-cuda-mps-control 2>/dev/null; done; services=(); }
trap close EXIT
for id in "${cards[@]}"; do
  pipe=""
  if [ "$MPS" = 1 ] && [ "$DEVICE" = cuda ] && command -v nvidia-cuda-mps-control >/dev/null; then
    pipe=$(mktemp -d -t mps.XXXX)
    CUDA_VISIBLE_DEVICES=$id CUDA_MPS_PIPE_DIRECTORY=$pipe CUDA_MPS_LOG_DIRECTORY=$pipe timeout 20 nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1
    if CUDA_VISIBLE_DEVICES=$id CUDA_MPS_PIPE_DIRECTORY=$pipe CUDA_MPS_LOG_DIRECTORY=$pipe timeout 60 python3 -c "
import torch; x = torch.ones(512, 512, device='cuda'); assert float((x @ x).sum()) == 512.0**3"; then
      services+=("$pipe"); echo "card $id: shared through MPS"
    else
      echo quit | CUDA_MPS_PIPE_DIRECTORY=$pipe timeout 15 nvidia-cuda-mps-control 2>/dev/null; pipe=""
    fi
  fi
  [ -n "$pipe" ] || { services+=(""); echo "card ${id:-none}: processes take turns"; }
done
pipes=("${services[@]}"); services=(); for pipe in "${pipes[@]}"; do [ -z "$pipe" ] || services+=("$pipe"); done
engine() { # card number, name, seconds after which it is ended, arguments; tried once more, without MPS, if it breaks
  local card=$(($1 % ${#cards[@]})) name=$2 until=$((SECONDS + $3)) set=() code; shift 3
  [ -z "${pipes[$card]}" ] || set=(CUDA_MPS_PIPE_DIRECTORY="${pipes[$card]}" CUDA_MPS_LOG_DIRECTORY="${pipes[$card]}")
  for ((attempt = 0; attempt < 2; attempt++)); do
    env CUDA_VISIBLE_DEVICES="${cards[$card]}" "${set[@]}" timeout $((until - SECONDS)) \
      python3 -W ignore -m engine "$@" --model "$MODEL" --steps "$STEPS" --threads 1 >>"$work/$name.log" 2>&1
    code=$?; set=()
    [ $code -ne 0 ] && [ $code -ne 124 ] && [ $((until - SECONDS)) -gt 40 ] || return $code
  done
}
pack() { # an archive is whole or not there
  tar czf "$work/.$1.part" -C "$work" "${@:2}" 2>/dev/null; mv "$work/.$1.part" "$OUT/$1"
}
snapshot() { pack results.tgz $(cd "$work" && ls | grep -E '\.(parquet|json|jsonl|log|svg)$'); pack probes.tgz probes; }
rows() { cat "$work"/*.jsonl 2>/dev/null | wc -l; }
watch() { # rows and load of the cards over time
  echo "$((SECONDS - began)) s, $(rows) rows, $(nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null | tr '\n' ';')" >>"$work/watch.log"
}
shared=(--out "$work/frontier.parquet" --probes "$work/probes" --probe-count "$PROBES" --prompts "$PROMPTS" --share "$work/share")
shared+=(--grid $GRIDS --first "$FIRST" --tuning-prompts "$TUNING" --accuracy-prompts "$ACCURACY" --policies "$POLICIES")
jobs=(); shards=$((PER_GPU * ${#cards[@]}))
if [ "$JOIN" = 1 ]; then
  for ((i = 0; i < shards; i++)); do
    engine "$i" "join$i" $((SWEEP + 20)) frontier --device "$DEVICE" "${shared[@]}" --budget "$SWEEP" --shard "$((1000 + i))/$((1000 + shards))" ${METHODS:+--methods $METHODS} & jobs+=($!)
  done
  wait "${jobs[@]}"; echo "joined for $((SECONDS - began)) s, $(rows) rows"; exit
fi
(while sleep 20; do watch; snapshot; done) >/dev/null 2>&1 & snapshots=$!
touch "$work/share/warming"
(sleep 150; rm -f "$work/share/warming"; [ -e "$work/sensitivity.parquet" ] || cp assets/quality/sensitivity.parquet "$work") >/dev/null 2>&1 & patience=$!
for ((i = 0; i < RECORDERS; i++)); do
  (engine "$i" "probe$i" "$SWEEP" theory --device "$DEVICE" --out "$work" --record "$PROBES" --shard "$i/$RECORDERS" --layers $((i == 0 ? LAYERS : 0))
  [ $i -ne $((RECORDERS - 1)) ] || rm -f "$work/share/warming") & jobs+=($!)
done
[ "$TUNE" = 0 ] || engine 0 tune $((SWEEP - 10)) tune --device "$DEVICE" --prompts 3 --keep-quality 0.98 --out "$work/tuned.json" & jobs+=($!)
for ((i = 0; i < shards; i++)); do
  engine "$i" "sweep$i" $((SWEEP + 20)) frontier --device "$DEVICE" "${shared[@]}" --budget "$SWEEP" --shard "$i/$shards" ${METHODS:+--methods $METHODS} & jobs+=($!)
done
wait "${jobs[@]}"; echo "sweep: $((SECONDS - began)) s, $(rows) rows"
close
if [ "$TIMING" -gt 0 ]; then
  jobs=(); timing=(frontier --grid timing --device cpu --out "$work/frontier.parquet" --probes "$work/probes" --probe-count "$PROBES" --budget "$TIMING")
  for ((i = 0; i < CPU_TIMERS; i++)); do
    engine 0 "time$i" $((TIMING + 25)) "${timing[@]}" --shard "$i/$CPU_TIMERS" ${METHODS:+--methods $METHODS} & jobs+=($!)
  done
  wait "${jobs[@]}"; echo "timing: $((SECONDS - began)) s, $(rows) rows"
fi
if [ "$TABLES" = 1 ]; then
  engine 0 merge 60 frontier --merge --out "$work/frontier.parquet"
  engine 0 tables 90 theory --device "$DEVICE" --out "$work" --probes "$work/probes" --rows "$work/frontier.parquet"
fi
kill "$snapshots" "$patience" 2>/dev/null
watch; snapshot
cat "$work/watch.log"; tail -qn 2 "$work"/*.log | grep -vi warning | sort | uniq -c | sort -rn | head -40
echo "all: $((SECONDS - began)) s"; ls -la "$OUT"
