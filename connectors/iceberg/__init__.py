"""Tables of Apache Iceberg, through the pyiceberg library; no Java."""
