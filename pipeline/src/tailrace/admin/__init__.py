"""Operations by people: check a pipeline, change its offsets, replay its rejected records, verify its output."""
