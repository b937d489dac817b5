#!/usr/bin/env bash
# The published quality tables on one machine with CUDA cards, all parts at once:
#   OUT=results bash assets/quality/run_on_gpu.sh
# Per card PER_GPU processes share the sweep by prompt (plain time slicing); RECORDERS more record the probe traces that
# the calibrated methods wait for, the first of them the layers' sensitivity too; one tunes a policy. SWEEP seconds after its start no shard
# begins a new run. Then every setting is timed alone, TIMING seconds long: on the first card, and on the CPU with one
# thread per process. Every 20 s all that is there is packed into $OUT, so that a kill at any time loses nothing; unpacked
# into the folder RESUME, the same command goes on where it stopped.
set -u
: "${OUT:?where the results go}" "${MODEL:=assets/tiny}" "${PROMPTS:=72}" "${STEPS:=30}" "${SWEEP:=260}" "${PER_GPU:=12}"
: "${DEVICE:=cuda}" "${PROBES:=8}" "${RECORDERS:=4}" "${POLICIES:=48}" "${CPU_TIMERS:=14}" "${TIMING:=60}" "${LAYERS:=6}"
: "${FIRST:=24}" "${TUNING:=12}" "${RESUME:=}" "${METHODS:=}"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
cards=$(nvidia-smi -L 2>/dev/null | wc -l); [ "$cards" -gt 0 ] || cards=1
work=${RESUME:-$(mktemp -d)}; mkdir -p "$OUT" "$work/probes"; began=$SECONDS
engine() { # name, seconds after which it is ended, arguments
  local name=$1 limit=$2; shift 2
  timeout "$limit" python3 -W ignore -m engine "$@" --model "$MODEL" --steps "$STEPS" --threads 1 >"$work/$name.log" 2>&1
}
pack() { # an archive is whole or not there
  tar czf "$work/.$1.part" -C "$work" "${@:2}" 2>/dev/null; mv "$work/.$1.part" "$OUT/$1"
}
snapshot() { pack results.tgz $(cd "$work" && ls | grep -E '\.(parquet|json|jsonl|log|svg)$'); pack probes.tgz probes; }
shared=(--out "$work/frontier.parquet" --probes "$work/probes" --probe-count "$PROBES" --prompts "$PROMPTS")
grids=(--grid frontier extended defaults agreement fine --first "$FIRST" --tuning-prompts "$TUNING" --policies "$POLICIES")
(while sleep 20; do snapshot; done) & snapshots=$!
jobs=()
for ((i = 0; i < RECORDERS; i++)); do
  CUDA_VISIBLE_DEVICES=$((i % cards)) engine "probe$i" "$SWEEP" theory --device "$DEVICE" --out "$work" --record "$PROBES" --shard "$i/$RECORDERS" --layers $((i == 0 ? LAYERS : 0)) & jobs+=($!)
done
engine tune $((SWEEP - 10)) tune --device "$DEVICE" --prompts 3 --keep-quality 0.98 --out "$work/tuned.json" & jobs+=($!)
shards=$((PER_GPU * cards))
for ((i = 0; i < shards; i++)); do
  CUDA_VISIBLE_DEVICES=$((i % cards)) engine "sweep$i" $((SWEEP + 25)) frontier --device "$DEVICE" "${grids[@]}" "${shared[@]}" --budget "$SWEEP" --shard "$i/$shards" ${METHODS:+--methods $METHODS} & jobs+=($!)
done
wait "${jobs[@]}"; echo "sweep: $((SECONDS - began)) s, $(cat "$work"/*.jsonl | wc -l) rows"
if [ "$TIMING" -gt 0 ]; then
jobs=(); timing=(frontier --grid timing "${shared[@]}" --budget "$TIMING" ${METHODS:+--methods $METHODS})
CUDA_VISIBLE_DEVICES=0 engine time $((TIMING + 20)) "${timing[@]}" --device "$DEVICE" --shard 0/1 & jobs+=($!)
for ((i = 0; i < CPU_TIMERS; i++)); do
  engine "time$i" $((TIMING + 25)) "${timing[@]}" --device cpu --shard "$i/$CPU_TIMERS" & jobs+=($!)
done
wait "${jobs[@]}"; echo "timing: $((SECONDS - began)) s, $(cat "$work"/*.jsonl | wc -l) rows"
fi
engine merge 60 frontier --merge --out "$work/frontier.parquet"
engine tables 90 theory --device "$DEVICE" --out "$work" --probes "$work/probes" --rows "$work/frontier.parquet"
kill "$snapshots" 2>/dev/null
snapshot
tail -qn 2 "$work"/*.log | grep -vi warning | sort | uniq -c | sort -rn | head -40
echo "all: $((SECONDS - began)) s"; ls -la "$OUT"
