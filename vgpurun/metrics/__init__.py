"""What GPUs and containers use, for Prometheus (`vgpurun exporter`), and what was used (`vgpurun history`)."""
