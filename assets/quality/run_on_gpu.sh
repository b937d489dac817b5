#!/usr/bin/env bash
# The published quality tables on one machine with CUDA cards, all parts at once:
#   OUT=results bash assets/quality/run_on_gpu.sh
# Per card PER_GPU processes share the sweep by prompt (plain time slicing); two more record the probe traces that the
# calibrated methods wait for; one measures layer sensitivity. SWEEP seconds after its start no shard begins a new run.
# Then every setting is timed alone: on the first card, and on the CPU with one thread per process.
set -u
: "${OUT:?where the results go}" "${MODEL:=assets/tiny}" "${PROMPTS:=72}" "${STEPS:=30}" "${SWEEP:=200}" "${PER_GPU:=11}"
: "${DEVICE:=cuda}" "${PROBES:=8}" "${RECORDERS:=4}" "${POLICIES:=48}" "${CPU_TIMERS:=13}" "${TIMING:=60}" "${LAYERS:=6}"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
cards=$(nvidia-smi -L 2>/dev/null | wc -l); [ "$cards" -gt 0 ] || cards=1
work=$(mktemp -d); mkdir -p "$OUT"
engine() { local name=$1; shift; python3 -m engine "$@" --model "$MODEL" --steps "$STEPS" --threads 1 >"$work/$name.log" 2>&1; }
shared=(--out "$work/frontier.parquet" --probes "$work/probes" --probe-count "$PROBES" --prompts "$PROMPTS")
mkdir -p "$work/probes"; began=$SECONDS
for ((i = 0; i < RECORDERS; i++)); do
  CUDA_VISIBLE_DEVICES=$((i % cards)) engine "probe$i" theory --device "$DEVICE" --out "$work" --record "$PROBES" --shard "$i/$RECORDERS" --layers $((i == 0 ? LAYERS : 0)) &
done
shards=$((PER_GPU * cards))
for ((i = 0; i < shards; i++)); do
  CUDA_VISIBLE_DEVICES=$((i % cards)) engine "sweep$i" frontier --device "$DEVICE" --grid frontier defaults agreement --policies "$POLICIES" "${shared[@]}" --budget "$SWEEP" --shard "$i/$shards" ${METHODS:+--methods $METHODS} &
done
wait; echo "sweep: $((SECONDS - began)) s"
CUDA_VISIBLE_DEVICES=0 engine time frontier --device "$DEVICE" --grid timing "${shared[@]}" --budget "$TIMING" ${METHODS:+--methods $METHODS} &
for ((i = 0; i < CPU_TIMERS; i++)); do
  engine "time$i" frontier --device cpu --grid timing "${shared[@]}" --budget "$TIMING" --shard "$i/$CPU_TIMERS" &
done
wait; echo "timing: $((SECONDS - began)) s"
engine merge frontier --merge --out "$work/frontier.parquet"
engine tables theory --device "$DEVICE" --out "$work" --probes "$work/probes" --rows "$work/frontier.parquet"
tail -n 3 "$work"/*.log | grep -v Warning
cp "$work/frontier.parquet" "$OUT"
tar czf "$OUT/probes.tgz" -C "$work" probes
tar czf "$OUT/tables.tgz" -C "$work" $(cd "$work" && ls | grep -E '\.(parquet|json|jsonl)$')
tar czf "$OUT/logs.tgz" -C "$work" $(cd "$work" && ls | grep -E '\.log$'); ls -la "$OUT"
