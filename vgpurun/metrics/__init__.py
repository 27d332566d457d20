"""Use of GPUs and containers, now for Prometheus (`vgpurun exporter`) and over time (`vgpurun history`)."""
