#!/usr/bin/env bash
# A job as a Spark application of its own: the coordinator runs beside the driver, TaskManagers in the executors.
#
#   MASTER=spark://host:7077 deploy/spark_submit.sh job.py --its arguments
#   MASTER=yarn deploy/spark_submit.sh job.py
#
# SPARK_SUBMIT, EXECUTORS, CORES and MEMORY say how; anything else goes into spark-defaults.conf. Executors need a Python in which
# Snapline is installed: PYSPARK_PYTHON names it, at the same path everywhere.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
submit=${SPARK_SUBMIT:-$(command -v spark-submit)} || { echo "spark_submit: no spark-submit here: activate the virtualenv, or set SPARK_SUBMIT" >&2; exit 2; }

# One task slot per core, executors that stay: a TaskManager holds state, and moving it costs a restore.
exec "$submit" \
    --master "${MASTER:?MASTER names the Spark master, for example spark://host:7077}" \
    --conf spark.executor.instances="${EXECUTORS:-2}" \
    --conf spark.executor.cores="${CORES:-2}" \
    --conf spark.executor.memory="${MEMORY:-1g}" \
    --conf spark.dynamicAllocation.enabled=false \
    --conf spark.speculation=false \
    "$@"
