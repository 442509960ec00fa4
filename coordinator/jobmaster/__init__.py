"""The JobMaster core: one job from submission to its end."""
