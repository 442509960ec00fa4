#!/usr/bin/env bash
# What a container runs: its command; or an executor, where Spark's driver has made the pod. Spark gives such a pod the one word
# `executor`, and says the rest in environment variables.
set -euo pipefail
[ "${1:-}" = executor ] || exec tini -- "$@"

options=()
while IFS= read -r name; do options+=("${!name}"); done < <(compgen -e | grep '^SPARK_JAVA_OPT_[0-9]' | sort -t_ -k4 -n)
java=$(python -c 'from snapline.spark.java import ensure_java; print(ensure_java().java)')
jars=$(python -c 'import os, pyspark; print(os.path.join(os.path.dirname(pyspark.__file__), "jars", "*"))')
exec tini -s -- "$java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$jars" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
