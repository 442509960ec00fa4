"""Places for programs outside in tasks with rows: what one may say (`program_place`), and who is let in
(`offered_places`)."""
