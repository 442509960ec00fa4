"""Transcripts: domain verbs in, expected effects out."""
