"""A job as a graph: the stream graph of a program, the specifications of its operators, and the JobGraph."""
