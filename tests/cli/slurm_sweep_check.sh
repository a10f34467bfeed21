#!/usr/bin/env bash
# A sweep on a real Slurm of one node: submitted, requeued in the middle, collected. The script starts its
# own munged, slurmctld and slurmd on free ports, in a temporary folder; exit 77 (skipped) if they are not
# installed or not allowed to run.
#
#   tests/cli/slurm_sweep_check.sh KVTWIN
set -euo pipefail
kvtwin=$(realpath "$1")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd sbatch scontrol squeue; do
  command -v "$program" > /dev/null || { echo "skipped: there is no $program (./dev test --slurm installs it)"; exit 77; }
done
[[ $(id -u) == 0 ]] || { echo "skipped: a Slurm of one's own needs root"; exit 77; }
here=$(mktemp -d /tmp/kvtwin_slurm_XXXXXX)
finish() {
  for daemon in d ctld munge; do [[ ! -s $here/$daemon.pid ]] || kill "$(cat "$here/$daemon.pid")" 2> /dev/null || true; done
  sleep 0.2
  rm -rf "$here"
}
trap finish EXIT
host=$(hostname -s)
base=$((20000 + RANDOM % 20000))
mkdir "$here/state" "$here/spool"
cat > "$here/slurm.conf" << CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
AuthInfo=socket=$here/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool
SlurmctldPidFile=$here/ctld.pid
SlurmdPidFile=$here/d.pid
SlurmctldLogFile=$here/ctld.log
SlurmdLogFile=$here/d.log
SlurmctldPort=$base
SlurmdPort=$((base + 1))
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$here/slurm.conf
head -c 1024 /dev/urandom > "$here/munge.key"
chmod 400 "$here/munge.key"
munged --force --key-file="$here/munge.key" --socket="$here/munge.sock" --pid-file="$here/munge.pid" \
  --log-file="$here/munge.log" --seed-file="$here/munge.seed" 2> "$here/munged.err" || { cat "$here/munged.err"; exit 77; }
slurmctld -f "$SLURM_CONF" && sleep 1 && slurmd -f "$SLURM_CONF" || { echo "skipped: the daemons do not start"; exit 77; }
for _ in $(seq 50); do sinfo -h -o %t 2> /dev/null | grep -q '^idle' && break; sleep 0.2; done
sinfo -h -o %t | grep -q '^idle' || { cat "$here"/*.log; echo "the node does not come up"; exit 1; }

sweep() {
  "$kvtwin" sweep "$root/scenarios/shipped/coding_agents_small.textproto" --vary=limits.requests_max=4..64*2 \
    --vary=memory.gpu_pages=5000..12000+1000 --out="$1" --format=csv --quiet "${@:2}"
}
sweep "$here/slurm" --launcher=slurm --tasks=2 > "$here/slurm.csv" &
submitted=$!
# After some points are done, every job is requeued.
for _ in $(seq 300); do
  [[ $(find "$here/slurm/points" -name run.binpb 2> /dev/null | wc -l) -ge 3 ]] && break
  sleep 0.1
done
before=$(find "$here/slurm/points" -name run.binpb | wc -l)
requeued=0
for task in $(squeue -h -r -t R -o %i); do
  # A job that has just ended cannot be requeued, which is no failure.
  if scontrol requeue "$task"; then requeued=$((requeued + 1)); fi
done
[[ $requeued -ge 1 ]] || { echo "nothing ran any more that could be requeued"; exit 1; }
echo "requeued $requeued tasks with $before of 40 points done"
# Slurm holds a requeued job for two minutes; release it at once.
while kill -0 "$submitted" 2> /dev/null; do
  sleep 1
  for task in $(squeue -h -r -t PD -o %i); do
    scontrol update JobId="$task" StartTime=now >> "$here/update.log" 2>&1 || true
  done
done
wait "$submitted"
sweep "$here/local" > "$here/local.csv"
cmp "$here/slurm.csv" "$here/local.csv"
[[ $(grep -c ',done,' "$here/slurm.csv") == 40 ]]
[[ $(find "$here/slurm/points" -name run.binpb | wc -l) == 40 ]]
echo "40 points on Slurm: the same table as here"
