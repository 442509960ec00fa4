"""What a job is: ids, messages, stream elements, key groups, the JobGraph and the contracts that a user implements."""

if __name__ != "snapline.dataflow":
    raise ImportError("dataflow is a part of Snapline, and snapline its only name in Python: import snapline.dataflow")
