"""What connectors that read and write files share: file systems, staging and publishing."""
