#!/bin/bash
#SBATCH --job-name=breakfix
#SBATCH --array=1-@shards@
#SBATCH --cpus-per-task=@workers@
#SBATCH --mem=@memory@M
#SBATCH --time=04:00:00
#SBATCH --output=breakfix-%A_%a.log
# Grades a class in @shards@ parts, one for each task of the array. Submit it with sbatch, from the folder of the paths below.
#
#   sbatch FILE                              all parts
#   sbatch --array=3,7 FILE                  parts 3 and 7 again: what has a grade keeps it
#   breakfix merge @results@/part-* -o @results@/all
set -euo pipefail

parts=@shards@  # not SLURM_ARRAY_TASK_COUNT, which is smaller when only some parts run again
part=${SLURM_ARRAY_TASK_ID:?submit this with sbatch; to try it by hand, set SLURM_ARRAY_TASK_ID=1}
export OMP_NUM_THREADS=1

exec ${BREAKFIX:-breakfix} grade @submissions@ --assignment @assignment@ @roster@ @trust@ \
  --shard "$part/$parts" --workers "${SLURM_CPUS_PER_TASK:-1}" --out @results@/part-"$part"
