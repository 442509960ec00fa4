"""The life of one subtask: mailbox, loop, chain of operators, writers. Cores."""
