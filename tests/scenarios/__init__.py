"""Transcripts: stories told to a core in domain verbs, with everything that it answers (as etcd's raft has them).

A file is a sequence of blocks: one or more lines of commands, `----`, and the lines that come out; blocks are parted by
blank lines, lines that begin with `#` are comments. `python -m tests.scenarios --rewrite [FILE...]` writes what comes
out into the files: read the difference before committing it. Which world a transcript plays in is the name of its
folder.
"""
