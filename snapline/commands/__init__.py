"""The commands of `snapline`, a module for each group of them; `snapline.cli` puts them together."""
