"""The node agent: it removes what dead pods have left, and tells the exporter which pod a container belongs to."""
