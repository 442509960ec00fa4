"""Sources and sinks that come with Snapline, and parts to build others from."""

if __name__ != "snapline.connectors":
    raise ImportError(
        "connectors is a part of Snapline, and snapline its only name in Python: import snapline.connectors"
    )
