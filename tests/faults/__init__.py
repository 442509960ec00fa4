"""Twelve faults that are planted in running jobs of real processes, and who names their cause after how long."""
